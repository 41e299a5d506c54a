// trainer/fault/signals.cc: handlers and the two words they write.

#include "trainer/fault/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "ckpt/base/check.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::trainer {
namespace {

std::atomic<bool> save_requested{false};
std::atomic<int> leave_signal{0};
std::atomic<int64_t> leave_ms{0};  // When that came.
static_assert(std::atomic<bool>::is_always_lock_free &&
                  std::atomic<int>::is_always_lock_free &&
                  std::atomic<int64_t>::is_always_lock_free,
              "a handler may use them");

// clock_gettime may be called in a handler; ckpt::Clock's promises say nothing
// of that.
int64_t MonotonicMs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void OnSave(int) { save_requested.store(true, std::memory_order_relaxed); }

void OnLeave(int signal) {
  int none = 0;
  if (leave_signal.compare_exchange_strong(none, signal)) {
    leave_ms.store(MonotonicMs());
    return;
  }
  if (MonotonicMs() - leave_ms.load() >= kSameWishMs) {
    _exit(kExitSignalBase + signal);
  }
}

void Install(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  HF_CHECK(sigaction(signal, &action, nullptr) == 0, "no handler for signal %d",
           signal);
}

}  // namespace

void InstallSignalHandlers() {
  Install(SIGUSR1, OnSave);
  Install(SIGTERM, OnLeave);
  Install(SIGINT, OnLeave);
  // `holdfast launch` starts ranks with these blocked, so that what came before
  // this point is kept and not deadly.
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
    sigaddset(&handled, signal);
  }
  HF_CHECK(sigprocmask(SIG_UNBLOCK, &handled, nullptr) == 0,
           "signals cannot be unblocked");
}

SignalAction RequestedAction() {
  if (leave_signal.load(std::memory_order_relaxed) != 0) {
    return SignalAction::kSaveAndLeave;
  }
  return save_requested.load(std::memory_order_relaxed) ? SignalAction::kSave
                                                        : SignalAction::kNone;
}

void ClearSaveRequest() {
  save_requested.store(false, std::memory_order_relaxed);
}

int LeaveSignal() { return leave_signal.load(std::memory_order_relaxed); }

}  // namespace holdfast::trainer
