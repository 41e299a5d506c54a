// ckpt/format/shard.h: the blocks around the data of a shard file, as bytes.
//
//   header (4096) | data: chunks, each from a multiple of 4096 | index | footer
//   (4096)
//
// The data area is cut into units: pieces of at most kUnitBytesMax stored bytes
// that are written, checksummed and read as one. The index lists every unit
// (offset, length, crc). The header and the footer carry the identity of run,
// checkpoint and file, so that a foreign or swapped file is found although its
// checksums are good. Byte by byte: ckpt/FORMAT.md.
//
// A coded file stores its units compressed, each by itself, in the order in
// which they were written. Offsets of chunks speak of its plain image: what the
// file would be without the codec. Its index leads from there to what is
// stored.

#ifndef HOLDFAST_CKPT_FORMAT_SHARD_H_
#define HOLDFAST_CKPT_FORMAT_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"

namespace holdfast::ckpt {

inline constexpr uint64_t kShardBlockBytes = 4096;
inline constexpr uint64_t kUnitBytesMax = uint64_t{1} << 20;

// Who a file is.
struct ShardIdentity {
  RunId run_id{};
  CheckpointId id;
  uint32_t file = 0;  // its number among the checkpoint's files
  uint32_t file_count = 0;
  friend bool operator==(const ShardIdentity&, const ShardIdentity&) = default;
};

// One checksummed piece of the data area. `offset` is a multiple of 4096; the
// bytes from the end of a unit to the next multiple of 4096 are zero on disk
// and are covered by the checksum: `bytes` counts them, and is a multiple of
// 4096.
struct Unit {
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t crc = 0;
  friend bool operator==(const Unit&, const Unit&) = default;
};

// 4096 bytes each.
std::vector<std::byte> EncodeShardHeader(const ShardIdentity& identity);
// A multiple of 4096 bytes; its CRC32C over all of them is `crc_index`.
std::vector<std::byte> EncodeShardIndex(std::span<const Unit> units);
// `plain_bytes` is the length of a coded file's plain image from 4096 on; 0
// says that the file is not coded.
std::vector<std::byte> EncodeShardFooter(const ShardIdentity& identity,
                                         uint64_t index_offset,
                                         uint32_t unit_count,
                                         uint32_t crc_index,
                                         uint64_t plain_bytes = 0);

// Size of the index of `unit_count` units, in bytes.
uint64_t ShardIndexBytes(uint32_t unit_count);

struct ShardFooter {
  ShardIdentity identity;
  uint64_t index_offset = 0;
  uint32_t unit_count = 0;
  uint32_t crc_index = 0;
  uint64_t plain_bytes = 0;
};

// kDataLoss: not whole. The message says what was found; the caller adds the
// file.
absl::StatusOr<ShardIdentity> DecodeShardHeader(
    std::span<const std::byte> block);
absl::StatusOr<ShardFooter> DecodeShardFooter(std::span<const std::byte> block);
absl::StatusOr<std::vector<Unit>> DecodeShardIndex(
    std::span<const std::byte> bytes, uint32_t unit_count);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_SHARD_H_
