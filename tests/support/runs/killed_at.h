// tests/support/runs/killed_at.h: a program that gets a signal at its n-th
// change of a file, by ptrace(2): for programs whose files do not go through
// our storage, which has faults of its own (HOLDFAST_FAULT).
//
// A change is a system call that creates, writes, resizes, syncs, renames,
// links or removes, of any of its threads.

#ifndef HOLDFAST_TESTS_SUPPORT_RUNS_KILLED_AT_H_
#define HOLDFAST_TESTS_SUPPORT_RUNS_KILLED_AT_H_

#include <ostream>
#include <string>
#include <vector>

namespace holdfast::tests {

struct SignalAt {
  int signal = 0;  // 0: none; it runs to its end
  int change = 0;  // from 1 on
  bool after =
      false;  // the call was made; else it is not (SIGKILL), or follows
};

struct TracedEnd {
  bool was_signaled = false;  // there was such a change
  int code = -1;              // the exit code, or 128 + n by signal n
  int changes = 0;            // so far
  std::string said;           // stdout and stderr
};
std::ostream& operator<<(std::ostream& stream, const TracedEnd& end);

// Whether a process may trace its child here.
bool CanTrace();

// `argv[0]` is a path. The caller has no other child meanwhile.
TracedEnd RunTraced(const std::vector<std::string>& argv, const SignalAt& at);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_RUNS_KILLED_AT_H_
