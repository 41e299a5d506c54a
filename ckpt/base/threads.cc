// ckpt/base/threads.cc: see threads.h.

#include "ckpt/base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/start_thread.h"

namespace holdfast::ckpt {
namespace {

// Once a process: work comes in many parts, each with threads of its own.
void WarnOfFewer(const absl::Status& refused, size_t wanted, size_t have) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  HF_LOG_WARNING("%s %s", std::string(refused.message()),
                 have == 0 ? std::string("The work goes on without one")
                           : absl::StrFormat("Of %d threads %d do the work",
                                             wanted, have));
}

}  // namespace

void RunWorkers(
    const Workers& how,
    const std::function<void(size_t worker, const WorkerTurn& turn)>& work) {
  const auto tick = [&how] {
    if (how.tick) how.tick();
  };
  std::mutex lock;
  std::condition_variable ended;
  size_t running = 0;
  std::vector<std::thread> threads;
  const size_t wanted = std::max<size_t>(how.wanted, 1);
  while (threads.size() < wanted) {
    {
      const std::lock_guard guard(lock);
      ++running;
    }
    absl::StatusOr<std::thread> started =
        StartThread(how.purpose, [&, worker = threads.size()] {
          work(worker, [] {});
          const std::lock_guard guard(lock);
          if (--running == 0) ended.notify_all();
        });
    if (!started.ok()) {
      const std::lock_guard guard(lock);
      --running;
      WarnOfFewer(started.status(), wanted, threads.size());
      break;
    }
    threads.push_back(*std::move(started));
  }
  if (threads.empty()) {
    auto ticked_at = std::chrono::steady_clock::now();
    work(0, [&] {
      const auto now = std::chrono::steady_clock::now();
      if (now - ticked_at < how.every) return;
      ticked_at = now;
      tick();
    });
    tick();
    return;
  }
  for (bool is_running = true; is_running;) {
    {
      std::unique_lock guard(lock);
      is_running =
          !ended.wait_for(guard, how.every, [&] { return running == 0; });
    }
    tick();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace holdfast::ckpt
