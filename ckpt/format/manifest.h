// ckpt/format/manifest.h: the record whose existence is the checkpoint.
//
// Bytes on disk: ckpt/FORMAT.md. Readers follow what a manifest lists and
// nothing else: they never recompute a layout. Decoding bounds every count by
// the bytes that are there before it takes memory, and accepts one spelling
// only: what decodes encodes back to the same bytes.

#ifndef HOLDFAST_CKPT_FORMAT_MANIFEST_H_
#define HOLDFAST_CKPT_FORMAT_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/box.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// The only name of a manifest, inside a checkpoint's directory.
inline constexpr char kManifestName[] = "MANIFEST";
// In features_must exactly when a file lies in a directory "dNNNN".
inline constexpr char kFeatureDirectories[] = "directories";
inline constexpr uint64_t kManifestBytesMax = uint64_t{256} << 20;

// A run of one item in one file: elements [first, first + count) of the
// row-major order of `part`, in `bytes_stored` bytes from `offset` on; both as
// in the file's plain image (ckpt/format/shard.h).
struct Chunk {
  ItemIndex item = 0;
  Box part;
  int64_t first = 0;
  int64_t count = 0;
  uint64_t offset = 0;
  uint64_t bytes_stored = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// One shard file. `crc_index` covers the table of unit checksums near its end,
// and so, through them, every stored byte.
struct ShardFile {
  std::string name;  // "shard-00000.hf", "d0000/shard-00000.hf"
  uint64_t bytes = 0;
  uint32_t unit_count = 0;
  uint32_t crc_index = 0;
  std::vector<Chunk> chunks;  // by offset
  // Of a coded file the length of its plain image, from 4096 on; else 0.
  uint64_t plain_bytes = 0;
  friend bool operator==(const ShardFile&, const ShardFile&) = default;

  bool coded() const { return plain_bytes > 0; }
  uint64_t index_bytes() const;
  // Where the data end, in the plain image.
  uint64_t data_end() const;
};

struct Manifest {
  uint32_t format_version = 1;
  uint32_t reader_version_min = 1;
  // A reader that does not know one of these must refuse. Known: "zstd", which
  // is there exactly when a file is coded.
  std::vector<std::string> features_must;
  std::vector<std::string> features_may;

  RunId run_id{};
  CheckpointId id;
  uint64_t commit_number = 0;          // 1, 2, ... within the incarnation
  std::optional<CheckpointId> parent;  // what this state grew out of
  int64_t time_unix_ms = 0;            // for people
  uint32_t world = 0;
  std::string layout;  // "tp2-pp2-dp2", for people
  uint64_t plan_hash = 0;

  std::vector<ItemSpec> items;          // sorted by (name, kind)
  std::vector<Digest128> item_digests;  // logical, one an item
  std::vector<ShardFile> files;
  // Everything that is not a tensor: step, data cursor, configuration,
  // fingerprint. The library stores and digests it and does not read it.
  std::map<std::string, std::string> attributes;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

std::vector<std::byte> EncodeManifest(const Manifest& manifest);

// kDataLoss: damaged (a checksum, a count or an order is wrong; says where).
// kFailedPrecondition: whole, but from a newer format; names the feature.
absl::StatusOr<Manifest> DecodeManifest(std::span<const std::byte> bytes);

// Names, order and ranges are consistent: items sorted and unique, each item
// covered exactly once by the chunks, chunks inside their files and apart, file
// names one path part that does not begin with a dot. DecodeManifest calls it;
// it costs O(n log n) in chunks.
absl::Status ValidateManifest(const Manifest& manifest);

// The digest of the whole state: items and attributes, independent of layout,
// files, codec, time and place. Attributes whose name starts with '.' (facts of
// the save itself) are left out.
Digest128 LogicalDigest(const Manifest& manifest);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_MANIFEST_H_
