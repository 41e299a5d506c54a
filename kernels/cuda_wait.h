// kernels/cuda_wait.h: how a thread waits for the GPU by asking.
//
// The runtime's own waits (cudaEventSynchronize and the rest) cannot be given
// up. So every wait is a loop: ask, Once(), until it is over, its time is up or
// someone has failed the device.
//
//   Pause pause;
//   while (!over()) {
//     if (pause.waited() > limit) return TooLong();
//     pause.Once();
//     if (pause.IsTimeToTell()) Tell();
//   }
//
// What that costs: an answer is found at most 1/256 of the wait late, but for
// the first 13 ms, where a sleep of 50 us and the kernel's slack of as much
// count; a question takes a microsecond or two of the processor.
//
// Only inside the plug-in; plain C++. Thread: one, WaitListeners any.

#ifndef HOLDFAST_KERNELS_CUDA_WAIT_H_
#define HOLDFAST_KERNELS_CUDA_WAIT_H_

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace holdfast::kernels {

class Pause {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns at once while an answer may be near, then sleeps. It does not
  // yield: on a busy machine that takes longer than the sleep.
  void Once() {
    const auto waited =
        std::chrono::duration_cast<std::chrono::microseconds>(this->waited());
    if (waited < kSpinFor) return;
    ::usleep(static_cast<useconds_t>(
        std::clamp(waited / 256, kSleepMin, kSleepMax).count()));
  }

  Clock::duration waited() const { return Clock::now() - start_; }

  // True once in 10 ms of waiting, not before the first 10.
  bool IsTimeToTell() {
    const Clock::time_point now = Clock::now();
    if (now - told_ < kTellEvery) return false;
    told_ = now;
    return true;
  }

 private:
  static constexpr std::chrono::microseconds kSpinFor{30};
  static constexpr std::chrono::microseconds kSleepMin{50};
  static constexpr std::chrono::microseconds kSleepMax{1000};
  static constexpr std::chrono::milliseconds kTellEvery{10};

  const Clock::time_point start_ = Clock::now();
  Clock::time_point told_ = start_;
};

// Who hears of the waits of which thread.
class WaitListeners {
 public:
  void Add(WaitListener* listener) {
    const std::lock_guard lock(mutex_);
    of_[std::this_thread::get_id()].push_back(listener);
  }
  void Remove(WaitListener* listener) {
    const std::lock_guard lock(mutex_);
    for (auto at = of_.begin(); at != of_.end();) {
      std::erase(at->second, listener);
      at = at->second.empty() ? of_.erase(at) : std::next(at);
    }
  }
  std::vector<WaitListener*> OfThisThread() const {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(std::this_thread::get_id());
    return found == of_.end() ? std::vector<WaitListener*>() : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::thread::id, std::vector<WaitListener*>> of_;
};

// Tells them of one wait; of its end too if it told them at all.
class WaitTeller {
 public:
  explicit WaitTeller(const WaitListeners& all) : all_(all) {}
  WaitTeller(const WaitTeller&) = delete;
  WaitTeller& operator=(const WaitTeller&) = delete;
  ~WaitTeller() {
    for (auto at = told_.rbegin(); at != told_.rend(); ++at) {
      (*at)->OnWaitOver();
    }
  }
  void Tell(std::string_view what) {
    if (told_.empty()) told_ = all_.OfThisThread();
    for (WaitListener* const listener : told_) listener->OnWaiting(what);
  }

 private:
  const WaitListeners& all_;
  std::vector<WaitListener*> told_;
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_WAIT_H_
