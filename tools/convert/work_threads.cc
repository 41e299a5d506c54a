// tools/convert/work_threads.cc: see work_threads.h.

#include "tools/convert/work_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace holdfast::tools {
namespace {

constexpr std::chrono::milliseconds kTick(100);

}  // namespace

absl::Status RunOnThreads(
    size_t pieces, const WorkThreads& how,
    const std::function<absl::Status(size_t piece, int worker)>& work) {
  std::mutex lock;
  std::condition_variable ended;
  absl::Status first;
  int running =
      static_cast<int>(std::clamp<size_t>(pieces, 1, std::max(1, how.threads)));
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  for (int worker = running - 1; worker >= 0; --worker) {
    threads.emplace_back([&, worker] {
      absl::Status status;
      while (status.ok() && !failed) {
        const size_t piece = next++;
        if (piece >= pieces) break;
        status = how.stop && how.stop() ? absl::CancelledError("stopped")
                                        : work(piece, worker);
      }
      const std::lock_guard guard(lock);
      if (!status.ok()) failed = true;
      if (first.ok()) first = status;
      --running;
      ended.notify_all();
    });
  }
  bool is_running = true;
  while (is_running) {
    {
      std::unique_lock guard(lock);
      is_running = !ended.wait_for(guard, kTick, [&] { return running == 0; });
    }
    if (how.on_tick) how.on_tick();
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace holdfast::tools
