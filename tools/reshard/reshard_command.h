// tools/reshard/reshard_command.h: `ckpt-reshard`, and `ckptctl reshard`, which
// is the same: a checkpoint rewritten for another layout.

#ifndef HOLDFAST_TOOLS_RESHARD_RESHARD_COMMAND_H_
#define HOLDFAST_TOOLS_RESHARD_RESHARD_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/convert/memory_share.h"

namespace holdfast::tools {

struct ReshardOptions {
  std::string checkpoint;  // RUN, RUN@STEP, RUN@ID or a directory
  int tp = 1, pp = 1, dp = 1;
  std::vector<int> stages;  // layers of each; empty: even
  std::string out;
  bool bare = false;  // the checkpoint's directory alone, not a run
  bool plan_only = false;
  uint64_t memory_limit = kMemoryLimitDefault;
  int threads = 0;             // 0: by the processors and the limit
  std::string codec = "none";  // "none", "zstd", "zstd:LEVEL"
  bool probe = true;           // --plan-only measures the disks for a moment
  bool json = false;
};

// Under a launcher (mpirun, srun) every rank calls it and takes its part.
// Returns the exit code (trainer/fault/exit_codes.h).
int RunReshard(const ReshardOptions& options);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_RESHARD_RESHARD_COMMAND_H_
