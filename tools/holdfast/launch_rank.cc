// tools/holdfast/launch_rank.cc: fork, wait, write down.

#include "tools/holdfast/launch_rank.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "tools/holdfast/child_process.h"
#include "tools/holdfast/launch_verdict.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

// A rank that ends by itself with an error leaves the others this long to end
// by themselves too: mpirun kills them when this wrapper ends.
constexpr unsigned kGraceSeconds = 1;

// Appears whole.
bool WriteWhole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int file =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool written = write(file, text.data(), text.size()) ==
                       static_cast<ssize_t>(text.size());
  close(file);
  return written && rename(temporary.c_str(), path.c_str()) == 0;
}

void Redirect(const std::string& path, int target) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND);
  if (file < 0) return;  // The rank speaks through mpirun instead.
  dup2(file, target);
  close(file);
}

// In the child.
[[noreturn]] void ExecRank(const std::string& dir, int rank, pid_t wrapper,
                           const std::vector<std::string>& command,
                           const sigset_t& mask_before) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != wrapper) _exit(128 + SIGKILL);
  // Out of the group that mpirun signals.
  setpgid(0, 0);
  Redirect(LaunchStdout(dir), STDOUT_FILENO);
  const char* const tty = std::getenv(kLaunchTtyVariable);
  Redirect(rank == 0 && tty != nullptr ? tty : LaunchStderr(dir),
           STDERR_FILENO);
  sigset_t mask = mask_before;
  if (command[0].find('/') == std::string::npos) {
    // Ours: it unblocks these when it is ready for them (trainer/fault).
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
      sigaddset(&mask, signal);
    }
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const std::vector<std::string> words = RankCommand(command);
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::fprintf(stderr, "holdfast launch: starting %s: %s\n", argv[0],
               strerror(errno));
  _exit(trainer::kExitUsage);
}

}  // namespace

std::string RankPidFile(const std::string& dir, int rank) {
  return absl::StrFormat("%s/rank-%d.pid", dir, rank);
}
std::string RankEndFile(const std::string& dir, int rank) {
  return absl::StrFormat("%s/rank-%d.end", dir, rank);
}
std::string LaunchStdout(const std::string& dir) { return dir + "/stdout"; }
std::string LaunchStderr(const std::string& dir) { return dir + "/stderr"; }

std::vector<std::string> RankCommand(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  if (words[0].find('/') == std::string::npos) {
    words.insert(words.begin(), OwnProgramPath());
  }
  return words;
}

int RunRankWrapper(const std::string& dir,
                   const std::vector<std::string>& command) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const char* const text = std::getenv("OMPI_COMM_WORLD_RANK");
  int rank = 0;
  if (text != nullptr && !absl::SimpleAtoi(text, &rank)) rank = 0;

  sigset_t waited;
  sigset_t mask_before;
  sigemptyset(&waited);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    sigaddset(&waited, signal);
  }
  sigprocmask(SIG_BLOCK, &waited, &mask_before);

  const pid_t wrapper = getpid();
  const pid_t child = fork();
  if (child == 0) ExecRank(dir, rank, wrapper, command, mask_before);
  if (child < 0) {
    std::fprintf(stderr, "holdfast launch: rank %d: fork: %s\n", rank,
                 strerror(errno));
    return trainer::kExitIo;
  }
  WriteWhole(RankPidFile(dir, rank), absl::StrFormat("%d\n", child));

  RankEnd end;
  end.rank = rank;
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) break;
    const int signal = sigwaitinfo(&waited, nullptr);
    if (signal == SIGUSR1) kill(child, SIGUSR1);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      // mpirun gives the job up: another rank has failed.
      end.with_others = true;
      kill(child, SIGKILL);
    }
  }
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.code = WEXITSTATUS(status);
    end.with_others = false;  // It was through before the signal came.
  }
  end.time_unix_ms = absl::ToUnixMillis(ckpt::RealClock().WallTime());
  WriteWhole(RankEndFile(dir, rank), EncodeRankEnd(end));
  if (end.signal != 0) return 128 + end.signal;
  if (end.code == trainer::kExitFinished ||
      end.code == trainer::kExitSavedRestart) {
    return 0;
  }
  const timespec grace = {kGraceSeconds, 0};
  sigdelset(&waited, SIGCHLD);
  sigtimedwait(&waited, nullptr, &grace);
  return end.code;
}

}  // namespace holdfast::tools
