// tests/support/thread_limit.h: a process that gets no more threads, as under a
// low `ulimit -u`. In a child of the test (tests/support/in_child.h).

#ifndef HOLDFAST_TESTS_SUPPORT_THREAD_LIMIT_H_
#define HOLDFAST_TESTS_SUPPORT_THREAD_LIMIT_H_

#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/base/start_thread.h"

namespace holdfast::tests {

// From now on this process, which has one thread, and what it executes gets
// `further` threads and no more. Root knows no such limit and becomes a user of
// its own; anybody else has other processes already, and gets none at all.
// False: it cannot be had here.
inline bool LimitThreads(int further) {
  if (::geteuid() == 0) {
    // Where few users are known to a container, one that most have.
    if (::setuid(100'000 + ::getpid()) != 0 && ::setuid(65534) != 0) {
      return false;
    }
  } else if (further > 0) {
    return false;
  }
  const auto set = [](rlim_t processes) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NPROC, &limit) != 0) return false;
    limit.rlim_cur = processes;
    return ::setrlimit(RLIMIT_NPROC, &limit) == 0;
  };
  if (!set(1)) return false;
  auto thread = ckpt::StartThread("a try", [] {});
  if (thread.ok()) {
    thread->join();
    return false;
  }
  return set(1 + static_cast<rlim_t>(further));
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_THREAD_LIMIT_H_
