// ckpt/format/checksum.h: CRC32C (Castagnoli), the checksum of every stored
// byte.
//
// The one door to ISA-L. crc32c("123456789") is e3069283.

#ifndef HOLDFAST_CKPT_FORMAT_CHECKSUM_H_
#define HOLDFAST_CKPT_FORMAT_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::ckpt {

// `seed` is the checksum of the bytes before these, 0 at the start.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

// The other CRC-32, of zip and gzip, for files that are not ours.
// crc32("123456789") is cbf43926.
uint32_t Crc32Zip(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_CHECKSUM_H_
