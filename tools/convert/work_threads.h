// tools/convert/work_threads.h: numbered pieces of work on several threads.
//
// The calling thread waits and ticks, or where the system refuses threads works
// itself (ckpt/base/threads.h). Blocks until all pieces are done, one has
// failed or somebody stops it.

#ifndef HOLDFAST_TOOLS_CONVERT_WORK_THREADS_H_
#define HOLDFAST_TOOLS_CONVERT_WORK_THREADS_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace holdfast::tools {

struct WorkThreads {
  int threads = 1;
  // Once it says true no further piece is begun. Any thread.
  std::function<bool()> stop = nullptr;
  // Called by the calling thread, ten times a second and at the end.
  std::function<void()> on_tick = nullptr;
};

// Calls `work` once for each of [0, pieces), in this order as far as they begin
// one after the other; `worker` is in [0, threads), and no two calls at a time
// have the same. Returns the first error; kCancelled: stopped.
absl::Status RunOnThreads(
    size_t pieces, const WorkThreads& how,
    const std::function<absl::Status(size_t piece, int worker)>& work);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_WORK_THREADS_H_
