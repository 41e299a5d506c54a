// tools/holdfast/child_process.cc: fork, exec, wait.

#include "tools/holdfast/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"

namespace holdfast::tools {
namespace {

// In the child, between fork and exec: only async-signal-safe calls.
void Redirect(const char* file, int target) {
  if (file[0] == '\0') return;
  const int fd = ::open(file, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (fd < 0) ::_exit(127);
  ::dup2(fd, target);
  ::close(fd);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildOptions& options) {
  std::vector<char*> argv;
  for (const std::string& word : options.argv) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  std::vector<std::string> env_text;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : options.env) {
      replaced = replaced || text.starts_with(name + "=");
    }
    if (!replaced) env_text.push_back(text);
  }
  for (const auto& [name, value] : options.env) {
    env_text.push_back(name + "=" + value);
  }
  std::vector<char*> env;
  for (const std::string& text : env_text) {
    env.push_back(const_cast<char*>(text.c_str()));
  }
  env.push_back(nullptr);

  // The pipe closes by itself when exec succeeds; otherwise errno comes
  // through.
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrFormat(
        "starting %s: pipe: %s", options.argv[0], std::strerror(errno)));
  }
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(pipe_fds[0]);
    ::close(pipe_fds[1]);
    return absl::UnavailableError(absl::StrFormat(
        "starting %s: fork: %s", options.argv[0], std::strerror(error)));
  }
  if (pid == 0) {
    ::setpgid(0, 0);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    Redirect(options.stdout_file.c_str(), STDOUT_FILENO);
    Redirect(options.stderr_file.c_str(), STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), env.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written =
        ::write(pipe_fds[1], &error, sizeof error);
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // whoever comes first, parent or child
  ::close(pipe_fds[1]);
  int error = 0;
  ssize_t got;
  do {
    got = ::read(pipe_fds[0], &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  ::close(pipe_fds[0]);
  if (got == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    return absl::UnavailableError(absl::StrFormat(
        "starting %s: %s", options.argv[0], std::strerror(error)));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      ended_(other.ended_),
      exit_code_(other.exit_code_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(ended_, other.ended_);
  std::swap(exit_code_, other.exit_code_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  if (!ended_) {
    SignalGroup(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void ChildProcess::Signal(int signal) {
  if (!ended_ && pid_ > 0) ::kill(pid_, signal);
}

void ChildProcess::SignalGroup(int signal) {
  if (!ended_ && pid_ > 0) ::killpg(pid_, signal);
}

bool ChildProcess::Poll() {
  if (ended_) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

bool ChildProcess::WaitFor(absl::Duration timeout) {
  ckpt::Clock& clock = ckpt::RealClock();
  const absl::Duration end = clock.Monotonic() + timeout;
  while (!Poll()) {
    if (clock.Monotonic() >= end) return false;
    clock.Sleep(absl::Milliseconds(10));
  }
  return true;
}

std::string ShellCommand(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& word : argv) {
    if (!text.empty()) text += ' ';
    if (word.find_first_of(" '\"$&|;<>()*?\\`") == std::string::npos &&
        !word.empty()) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) {
      if (c == '\'') {
        text += "'\\''";
      } else {
        text += c;
      }
    }
    text += '\'';
  }
  return text;
}

std::string OwnProgramPath() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return "holdfast";
  return std::string(path, static_cast<size_t>(length));
}

}  // namespace holdfast::tools
