// ckpt/format/checksum.cc: the one door to ISA-L.

#include "ckpt/format/checksum.h"

#include <algorithm>

// The header of Debian's libisal-dev 2.30 includes nothing that needs more.
#include <isa-l/crc.h>

namespace holdfast::ckpt {

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  // crc32_iscsi takes and returns the register as it is; CRC32C is defined with
  // the register inverted at both ends. It takes its length as an int, and a
  // pointer that it does not write through.
  constexpr size_t kPiece = size_t{1} << 30;
  uint32_t state = ~seed;
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kPiece);
    state = ::crc32_iscsi(
        reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data())),
        static_cast<int>(size), state);
    bytes = bytes.subspan(size);
  }
  return ~state;
}

uint32_t Crc32Zip(std::span<const std::byte> bytes, uint32_t seed) {
  // Inverts at both ends by itself.
  return ::crc32_gzip_refl(
      seed, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace holdfast::ckpt
