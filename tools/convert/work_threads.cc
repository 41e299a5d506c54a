// tools/convert/work_threads.cc: see work_threads.h.

#include "tools/convert/work_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "ckpt/base/threads.h"

namespace holdfast::tools {
namespace {

constexpr std::chrono::milliseconds kTick(100);

}  // namespace

absl::Status RunOnThreads(
    size_t pieces, const WorkThreads& how,
    const std::function<absl::Status(size_t piece, int worker)>& work) {
  std::mutex lock;
  absl::Status first;
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  ckpt::RunWorkers(
      {.purpose = "reading and writing",
       .wanted = std::clamp<size_t>(pieces, 1, std::max(1, how.threads)),
       .every = kTick,
       .tick = how.on_tick},
      [&](size_t worker, const ckpt::WorkerTurn& turn) {
        absl::Status status;
        while (status.ok() && !failed) {
          const size_t piece = next++;
          if (piece >= pieces) break;
          status = how.stop && how.stop()
                       ? absl::CancelledError("stopped")
                       : work(piece, static_cast<int>(worker));
          turn();
        }
        const std::lock_guard guard(lock);
        if (!status.ok()) failed = true;
        if (first.ok()) first = status;
      });
  return first;
}

}  // namespace holdfast::tools
