// See the header.

#include "tests/support/runs/killed_at.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <set>

#include "ckpt/base/check.h"

namespace holdfast::tests {
namespace {

bool IsChange(uint64_t call, const uint64_t* arguments) {
  switch (call) {
    case SYS_openat:
      return (arguments[2] & O_CREAT) != 0;
    case SYS_write:
      return arguments[0] > STDERR_FILENO;
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_mkdirat:
    case SYS_renameat2:
    case SYS_linkat:
    case SYS_unlinkat:
      return true;
    default:
      return false;
  }
}

void Exec(const std::vector<std::string>& argv, int said) {
  std::vector<char*> words;
  for (const std::string& word : argv) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  ::dup2(said, STDOUT_FILENO);
  ::dup2(said, STDERR_FILENO);
  // Of a sanitized program: its look for leaks fails where it is traced.
  const char* const set = std::getenv("ASAN_OPTIONS");
  const std::string options = set == nullptr ? "" : std::string(set) + ":";
  ::setenv("ASAN_OPTIONS", (options + "detect_leaks=0").c_str(), 1);
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) {
    ::raise(SIGSTOP);
    ::execv(words[0], words.data());
  }
  ::_exit(127);
}

std::string TextOf(int fd) {
  std::string text(1 << 16, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const TracedEnd& end) {
  return stream << "code " << end.code << " after " << end.changes
                << " changes, it said: " << end.said;
}

bool CanTrace() {
  const TracedEnd end = RunTraced({"/bin/true"}, {});
  return end.code == 0;
}

TracedEnd RunTraced(const std::vector<std::string>& argv, const SignalAt& at) {
  TracedEnd end;
  const int said = ::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  HF_CHECK(said >= 0, "no file for what a program says: errno %d", errno);
  const pid_t child = ::fork();
  if (child == 0) Exec(argv, said);
  int status = 0;
  HF_CHECK(::waitpid(child, &status, 0) == child, "no child");
  if (WIFSTOPPED(status)) {
    const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD |
                         PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    HF_CHECK(::ptrace(PTRACE_SETOPTIONS, child, nullptr, options) == 0,
             "ptrace: errno %d", errno);
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  }
  std::set<pid_t> changing;  // threads in such a call
  pid_t signaled_after = 0;
  while (!WIFEXITED(status) && !WIFSIGNALED(status)) {
    int stopped = 0;
    const pid_t thread = ::waitpid(-1, &stopped, __WALL);
    if (thread < 0 && errno == EINTR) continue;
    HF_CHECK(thread > 0, "waiting for %s: errno %d", argv[0], errno);
    if (!WIFSTOPPED(stopped)) {
      if (thread == child) status = stopped;
      continue;
    }
    long pass = 0;
    if (WSTOPSIG(stopped) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info = {};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info);
      bool now = false;
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY &&
          IsChange(info.entry.nr, info.entry.args)) {
        changing.insert(thread);
        if (++end.changes == at.change) {
          if (at.after) {
            signaled_after = thread;
          } else {
            now = true;
          }
        }
      } else if (info.op == PTRACE_SYSCALL_INFO_EXIT &&
                 changing.erase(thread) > 0) {
        now = thread == signaled_after;
        if (now) signaled_after = 0;
      }
      if (now && at.signal != 0) {
        end.was_signaled = true;
        ::kill(child, at.signal);
      }
    } else if (stopped >> 16 == 0 && WSTOPSIG(stopped) != SIGSTOP) {
      pass = WSTOPSIG(stopped);  // a signal for it; SIGSTOP: a new thread
    }
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, pass);
  }
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  end.said = TextOf(said);
  ::close(said);
  return end;
}

}  // namespace holdfast::tests
