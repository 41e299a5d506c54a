// trainer/data/mask_format.cc: header, checks, and counting of loss masks.

#include "trainer/data/mask_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"
#include "trainer/data/little_endian.h"

namespace holdfast::trainer {
namespace {

constexpr char kMagic[8] = {'H', 'F', 'M', 'A', 'S', 'K', '1', 0};

}  // namespace

std::array<std::byte, kMaskHeaderBytes> EncodeMaskHeader(uint64_t tokens,
                                                         uint64_t counting) {
  std::array<std::byte, kMaskHeaderBytes> header;
  std::memcpy(header.data(), kMagic, 8);
  std::memcpy(header.data() + 8, &tokens, 8);
  std::memcpy(header.data() + 16, &counting, 8);
  return header;
}

absl::StatusOr<std::span<const std::byte>> DecodeMask(
    std::span<const std::byte> mask, uint64_t tokens, std::string_view name) {
  if (mask.size() < kMaskHeaderBytes ||
      std::memcmp(mask.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: does not start with HFMASK1 and a zero byte; this is no loss mask",
        name));
  }
  const auto mask_tokens = LoadInt<uint64_t>(mask, 8);
  if (mask_tokens != tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: masks %d tokens, but the set has %d; it belongs to another set",
        name, mask_tokens, tokens));
  }
  const uint64_t expected = kMaskHeaderBytes + (tokens + 7) / 8;
  if (mask.size() != expected) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes, expected %d for %d tokens; the file was cut off or "
        "added to",
        name, mask.size(), expected, tokens));
  }
  const std::span<const std::byte> bits = mask.subspan(kMaskHeaderBytes);
  if (tokens % 8 != 0 &&
      std::to_integer<unsigned>(bits.back()) >> (tokens % 8) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: bits are set past its last token, %d", name, tokens - 1));
  }
  const auto recorded = LoadInt<uint64_t>(mask, 16);
  const uint64_t found = CountBits(bits, 0, tokens);
  if (found != recorded) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bits are set, its header records %d; the file "
                        "is damaged",
                        name, found, recorded));
  }
  return bits;
}

uint64_t CountBits(std::span<const std::byte> bits, uint64_t first,
                   uint64_t count) {
  uint64_t ones = 0;
  uint64_t bit = first;
  const uint64_t end = first + count;
  const auto one = [&] {
    ones += std::to_integer<unsigned>(bits[bit / 8]) >> (bit % 8) & 1;
    ++bit;
  };
  while (bit < end && bit % 8 != 0) one();
  while (bit + 64 <= end) {
    ones +=
        static_cast<uint64_t>(std::popcount(LoadInt<uint64_t>(bits, bit / 8)));
    bit += 64;
  }
  while (bit < end) one();
  return ones;
}

}  // namespace holdfast::trainer
