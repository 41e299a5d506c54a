// ckpt/base/start_thread.h: a thread, or the reason why there is none.
//
// A thread is refused (EAGAIN) when `ulimit -u`, the cgroup's pids.max or the
// memory for its stack is used up. std::thread then throws, and a process whose
// other threads are not joined ends without a word.
//
// Any thread may call. In a header, because the GPU plug-in has it too.

#ifndef HOLDFAST_CKPT_BASE_START_THREAD_H_
#define HOLDFAST_CKPT_BASE_START_THREAD_H_

#include <functional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

// A thread that calls `run`. `purpose` names it in the error, such as "the
// watchdog". kResourceExhausted: the system refuses, and `run` is not called.
inline absl::StatusOr<std::thread> StartThread(std::string_view purpose,
                                               std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "starting a thread for %s: %s; is the limit of processes reached "
        "(ulimit -u, the cgroup's pids.max), or memory used up?",
        purpose, error.code().message()));
  }
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_START_THREAD_H_
