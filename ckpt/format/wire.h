// ckpt/format/wire.h: little-endian integers, varints and strings, written to
// and read from bytes. For ckpt/format, the messages of ckpt/session and those
// of ckpt/c.
//
// A Reader never leaves its span: once something is missing or malformed it has
// failed, gives zeros, and remembers where. Callers look at `ok()` when it
// suits them, and before they trust a count.

#ifndef HOLDFAST_CKPT_FORMAT_WIRE_H_
#define HOLDFAST_CKPT_FORMAT_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::ckpt {

static_assert(std::endian::native == std::endian::little,
              "fixed integers are copied as they are in memory");

class Writer {
 public:
  template <typename Integer>
  void Fixed(Integer value) {
    Raw(&value, sizeof(value));
  }
  // LEB128: seven bits a byte, low ones first, the top bit says "more".
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7)
      Fixed(static_cast<uint8_t>(value | 0x80));
    Fixed(static_cast<uint8_t>(value));
  }
  // 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
  void Zigzag(int64_t value) {
    Varint(static_cast<uint64_t>(value) << 1 ^
           static_cast<uint64_t>(value >> 63));
  }
  void String(std::string_view text) {
    Varint(text.size());
    Raw(text.data(), text.size());
  }
  void Raw(const void* data, size_t size) {
    const auto* const bytes = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  void ZerosUntil(size_t size) { bytes_.resize(size); }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return !failed_; }
  size_t position() const { return position_; }
  size_t left() const { return failed_ ? 0 : bytes_.size() - position_; }
  void Fail() { failed_ = true; }

  template <typename Integer>
  Integer Fixed() {
    Integer value{};
    Raw(&value, sizeof(value));
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Fixed<uint8_t>();
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        // The tenth byte has room for one bit; a last byte of zero is a second
        // spelling.
        if ((shift == 63 && byte > 1) || (shift > 0 && byte == 0)) Fail();
        return failed_ ? 0 : value;
      }
    }
    Fail();
    return 0;
  }
  int64_t Zigzag() {
    const uint64_t value = Varint();
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }
  std::string String() {
    const uint64_t size = Varint();
    if (size > left()) {
      Fail();
      return {};
    }
    std::string text(size, '\0');
    Raw(text.data(), size);
    return text;
  }
  // How many of something follow, each of at least `bytes_min` bytes.
  size_t Count(size_t bytes_min) {
    const uint64_t count = Varint();
    if (count > left() / bytes_min) {
      Fail();
      return 0;
    }
    return count;
  }
  // Narrow integers must hold their value.
  uint32_t Varint32() {
    const uint64_t value = Varint();
    if (value > UINT32_MAX) Fail();
    return failed_ ? 0 : static_cast<uint32_t>(value);
  }
  // Non-negative int64.
  int64_t Varint63() {
    const uint64_t value = Varint();
    if (value > INT64_MAX) Fail();
    return failed_ ? 0 : static_cast<int64_t>(value);
  }
  void Raw(void* out, size_t size) {
    if (size > left()) {
      Fail();
      return;
    }
    if (size > 0) std::memcpy(out, bytes_.data() + position_, size);
    position_ += size;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_WIRE_H_
