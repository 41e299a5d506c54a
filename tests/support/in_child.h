// tests/support/in_child.h: a part of a test in a process of its own, for what
// a process cannot take back: limits, users, filters, mounts.

#ifndef HOLDFAST_TESTS_SUPPORT_IN_CHILD_H_
#define HOLDFAST_TESTS_SUPPORT_IN_CHILD_H_

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace holdfast::tests {

// Runs `body` in a child, whose "" or reason for having failed it returns.
inline std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string failure = body();
    [[maybe_unused]] const ssize_t told =
        ::write(ends[1], failure.data(), failure.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string failure;
  char piece[512];
  for (ssize_t got; (got = ::read(ends[0], piece, sizeof(piece))) > 0;) {
    failure.append(piece, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status)) failure += " (the child died)";
  return failure;
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_IN_CHILD_H_
