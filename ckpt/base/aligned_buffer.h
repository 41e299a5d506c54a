// ckpt/base/aligned_buffer.h: host memory that O_DIRECT accepts.

#ifndef HOLDFAST_CKPT_BASE_ALIGNED_BUFFER_H_
#define HOLDFAST_CKPT_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <span>
#include <utility>

namespace holdfast::ckpt {

// Large memory starts on a multiple of a huge page and asks for them: a
// transfer of a megabyte then is a few long runs of memory for the device, not
// 256 pages, which doubled the
// speed where it was measured (bench_pages). Where the system has
// none to give it is ordinary memory.
inline constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t AlignmentFor(size_t bytes) {
  return bytes >= kHugePage ? kHugePage : 4096;
}
// For [memory, memory + bytes), before it is touched.
void PreferHugePages(void* memory, size_t bytes);

// Owns `size()` zeroed bytes that start on a multiple of kAlignment. The
// capacity is rounded up to kAlignment, so the last block may be written whole.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 4096;

  AlignedBuffer() = default;
  // CHECK-fails when the system has no memory left.
  explicit AlignedBuffer(size_t size);
  ~AlignedBuffer();

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_, size_}; }
  std::span<const std::byte> span() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// `value` rounded up to a multiple of `multiple`.
constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_ALIGNED_BUFFER_H_
