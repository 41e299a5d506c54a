// ckpt/format/coded_units.h: the units of a coded file, and its index.
//
// A coded file stores its units compressed, each by itself, in the order in
// which they were written. Offsets of chunks speak of its plain image, which is
// what the file would be without the codec: so whoever plans need not know what
// shrinks to what. The index leads from there to what is stored.
//
//   plain image   | unit 0    | unit 1    | unit 2    |
//   stored        | unit 1 | unit 0 | unit 2 |
//
// Byte by byte: ckpt/FORMAT.md.

#ifndef HOLDFAST_CKPT_FORMAT_CODED_UNITS_H_
#define HOLDFAST_CKPT_FORMAT_CODED_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/shard.h"

namespace holdfast::ckpt {

// One unit of a coded file. Its place in the plain image follows from the units
// before it in the index: they tile the image, from 4096 on.
struct CodedUnit {
  uint64_t offset = 0;        // where it is stored
  uint32_t bytes_stored = 0;  // there; zeros follow up to a multiple of 4096
  uint32_t bytes = 0;         // plain, a multiple of 4096
  uint32_t crc = 0;           // of what is stored, the zeros included
  // kNone: as it is, because coding would not have saved a block.
  Codec codec = Codec::kNone;
  uint8_t planes = 1;  // bytes of the elements that were split into planes
  friend bool operator==(const CodedUnit&, const CodedUnit&) = default;

  uint64_t padded_bytes() const {
    return RoundUp(bytes_stored, kShardBlockBytes);
  }
};

// Codes `plain`, elements of `planes` bytes, into the beginning of `out`, which
// has as many bytes: a frame and zeros, or `plain` as it is when a frame would
// not save a block. The offset is the caller's to fill in.
CodedUnit CodeUnit(ZstdEncoder& encoder, std::span<const std::byte> plain,
                   int planes, std::span<std::byte> out);

// Can an entry of an index say this, by itself?
bool IsPossible(const CodedUnit& unit);
// kDataLoss unless all of them can, and stored they tile the data area from
// 4096 on, in any order: what EncodeCodedIndex must be given.
absl::Status CheckCodedUnits(std::span<const CodedUnit> units);

// Size of the index of `unit_count` units, in bytes.
uint64_t CodedIndexBytes(uint32_t unit_count);
// `units` by their place in the plain image.
std::vector<std::byte> EncodeCodedIndex(std::span<const CodedUnit> units);
// kDataLoss, as DecodeShardIndex.
absl::StatusOr<std::vector<CodedUnit>> DecodeCodedIndex(
    std::span<const std::byte> bytes, uint32_t unit_count);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_CODED_UNITS_H_
