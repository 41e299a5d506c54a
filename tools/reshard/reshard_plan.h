// tools/reshard/reshard_plan.h: from options and a checkpoint to what will be
// done: the layout, the threads that the memory allows, the figures of
// --plan-only. Pure.

#ifndef HOLDFAST_TOOLS_RESHARD_RESHARD_PLAN_H_
#define HOLDFAST_TOOLS_RESHARD_RESHARD_PLAN_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"
#include "tools/convert/codec_option.h"
#include "tools/convert/memory_share.h"
#include "tools/reshard/reshard_command.h"

namespace holdfast::tools {

// The target of `options` for the model that the checkpoint is of.
// kFailedPrecondition: its attributes do not say which; kInvalidArgument: the
// model cannot be cut so.
absl::StatusOr<std::unique_ptr<ckpt::JobLayout>> TargetLayout(
    const ckpt::Manifest& source, const ReshardOptions& options);

// What a limit on buffers allows. kInvalidArgument: not even one thread fits,
// and says what would.
absl::StatusOr<MemoryShare> ShareMemory(const ReshardOptions& options,
                                        bool source_is_coded, int processors);

struct ReadFigures {
  uint64_t bytes_wanted = 0;
  uint64_t bytes_read = 0;  // with what units have besides, about
  uint64_t reads = 0;       // about
};
// Of a conversion of `source` to `target`; of at most some thousand windows,
// the others in proportion.
absl::StatusOr<ReadFigures> CountReads(const ckpt::Manifest& source,
                                       const ckpt::JobLayout& target);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_RESHARD_RESHARD_PLAN_H_
