// trainer/data/mask_format.h: PREFIX.mask, which tokens count in the loss.
//
// Our own side file of a Megatron set; a set without one counts every token.
// Integers are little-endian.
//
//   mask := magic[8] tokens:u64 counting:u64 bits
//   magic := "HFMASK1" 00
//   bits := ceil(tokens / 8) bytes; token t is bit t % 8 of byte t / 8, the
//           lowest bit first. 1: the token counts when it is the one to be
//           predicted. Bits past the last token are 0.
//
// Example. Tokens a b c d, of which c and d count: 48 46 4d 41 53 4b 31 00,
// 4 and 2 as eight bytes each, then 0c; 25 bytes.
//
// Pure: bytes to values.

#ifndef HOLDFAST_TRAINER_DATA_MASK_FORMAT_H_
#define HOLDFAST_TRAINER_DATA_MASK_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

inline constexpr size_t kMaskHeaderBytes = 24;

std::array<std::byte, kMaskHeaderBytes> EncodeMaskHeader(uint64_t tokens,
                                                         uint64_t counting);

// The bits, once header, size, padding and the number of ones are right.
//
// kInvalidArgument: the message starts with `name`. Costs one pass over the
//     bits, an eighth of a byte a token.
absl::StatusOr<std::span<const std::byte>> DecodeMask(
    std::span<const std::byte> mask, uint64_t tokens, std::string_view name);

// Ones among `count` bits from bit `first`. Costs an eighth of a byte a bit.
uint64_t CountBits(std::span<const std::byte> bits, uint64_t first,
                   uint64_t count);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_MASK_FORMAT_H_
