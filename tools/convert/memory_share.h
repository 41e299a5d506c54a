// tools/convert/memory_share.h: how many threads a limit on memory allows, each
// with a reader of the checkpoint and buffers of its own. Pure.

#ifndef HOLDFAST_TOOLS_CONVERT_MEMORY_SHARE_H_
#define HOLDFAST_TOOLS_CONVERT_MEMORY_SHARE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/format/codec.h"

namespace holdfast::tools {

inline constexpr uint64_t kMemoryLimitDefault = uint64_t{1} << 30;

struct MemoryWish {
  uint64_t limit = kMemoryLimitDefault;  // --memory-limit
  int threads = 0;                       // --threads; 0: by `processors`
  int processors = 1;
  uint64_t thread_bytes = 0;  // of each, beside its reader
  // What is read is a checkpoint; else what the source takes for itself is
  // known.
  bool reads_checkpoint = true;
  uint64_t source_bytes = 0;
  bool source_is_coded = true;
};

struct MemoryShare {
  int threads = 1;
  ckpt::CheckpointSourceOptions source;
  uint64_t bytes_planned = 0;
};

// Of a thread that writes a checkpoint (ckpt/convert/checkpoint_writer.h).
uint64_t ConvertThreadBytes(ckpt::Codec codec);

// What of the limit is there for a source while it is opened, before any thread
// has its memory.
uint64_t MemoryToOpen(uint64_t limit);

// kInvalidArgument in words for the user of --memory-limit: `what`, the
// metadata of a source, would take `needed` bytes, and `max` (of MemoryToOpen)
// are there.
absl::Status CheckMetadataFits(std::string_view what, uint64_t needed,
                               uint64_t max);

// kInvalidArgument: not even one thread fits, and says what would.
absl::StatusOr<MemoryShare> ShareMemory(const MemoryWish& wish);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_MEMORY_SHARE_H_
