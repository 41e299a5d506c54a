// tests/e2e/disk/saver.cc: ckpt_saver, a job of a few processes that does
// nothing but save: what the tests of this folder kill, stop, starve and take
// the disk from.
//
//   ckpt_saver --run=DIR --told=FILE [--ranks=2] [--base=0] [--saves=3]
//              [--keep_last=1] [--storage=auto] [--begin_ms=60000]
//
// The first process forks the ranks and waits for them, as a launcher does:
// when one dies it kills the others. The state of a step is a function of the
// step alone (support/sim_layout.h), and steps are base + 1, base + 2, ...
// HOLDFAST_FAULT is honoured. FILE gets a line for each thing that a rank was
// told, appended in one write:
//
//   RANK PID claimed STEP       -1: a fresh run; STEP's bytes were all compared
//   RANK PID begins STEP
//   RANK PID committed|aborted|failed|unknown|skipped STEP MESSAGE
//   RANK PID stopped            by SIGSTOP; written by the launcher
//   RANK PID ended CODE
//
// Exit: the worst of the ranks', by trainer/fault/exit_codes.h: 74 after three
// failed saves in a row or a failed last one, 78 when another job has taken the
// run; 128 + n when signal n ended a rank.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/storage/fd.h"
#include "tests/support/party.h"
#include "tests/support/socket_group.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tests {
namespace {

struct Options {
  std::string run;
  std::string told;
  std::string storage = "auto";
  int64_t ranks = 2;
  int64_t base = 0;
  int64_t saves = 3;
  int64_t keep_last = 1;
  int64_t begin_ms = 60'000;
};

// What the trainer's save policy does as well.
constexpr int kFailuresMax = 3;

// One line of the told file. It is on another file system than the run.
class Teller {
 public:
  explicit Teller(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                   0644)) {}
  void Tell(int rank, pid_t pid, const std::string& what) {
    const std::string line = absl::StrFormat("%d %d %s\n", rank, pid, what);
    if (::write(fd_.get(), line.data(), line.size()) !=
        static_cast<ssize_t>(line.size())) {
      std::perror("ckpt_saver: writing what was told");
      ::_exit(trainer::kExitBug);
    }
  }

 private:
  ckpt::Fd fd_;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "ckpt_saver: %s\n", status.ToString().c_str());
  return trainer::ExitCodeOf(status);
}

int RunRank(const Options& options, std::unique_ptr<ckpt::Group> group) {
  const int rank = ckpt::Index(group->rank());
  Teller teller(options.told);
  const auto tell = [&](const std::string& what) {
    teller.Tell(rank, ::getpid(), what);
  };
  ckpt::CheckpointerOptions checkpoint;
  checkpoint.run_dir = options.run;
  checkpoint.keep_last = static_cast<int>(options.keep_last);
  checkpoint.storage = options.storage;
  checkpoint.begin_timeout_ms = options.begin_ms;
  const char* const fault = std::getenv("HOLDFAST_FAULT");
  checkpoint.fault_spec = fault == nullptr ? "" : fault;
  Party party(std::make_shared<SimLayout>(static_cast<int>(options.ranks)),
              std::move(group), checkpoint);
  if (!party.status().ok()) return Fail(party.status());
  ckpt::Checkpointer& checkpointer = party.checkpointer();

  const auto loaded = checkpointer.ClaimAndLoad({});
  if (!loaded.ok()) return Fail(loaded.status());
  if (loaded->loaded) {
    const std::string difference = party.Compare(loaded->step);
    if (!difference.empty()) return Fail(absl::InternalError(difference));
  }
  tell(absl::StrFormat("claimed %d", loaded->loaded ? loaded->step : -1));

  absl::Status last;
  for (int64_t step = options.base + 1; step <= options.base + options.saves;
       ++step) {
    party.Fill(step);
    tell(absl::StrFormat("begins %d", step));
    const absl::Status begun = checkpointer.BeginSave({step, {}});
    if (!begun.ok()) return Fail(begun);
    party.StepTo(step + 1);
    const auto report = checkpointer.WaitForSave(absl::Minutes(2));
    if (!report.has_value()) {
      return Fail(absl::DeadlineExceededError("the save does not end"));
    }
    tell(absl::StrFormat("%s %d %s", std::string(NameOf(report->outcome)), step,
                         std::string(report->status.message())));
    last = report->status;
    if (absl::IsFailedPrecondition(last) ||
        checkpointer.counters().failed_in_a_row >= kFailuresMax) {
      break;
    }
  }
  const absl::Status closed = checkpointer.Close();
  return last.ok() && closed.ok() ? trainer::kExitFinished
                                  : Fail(last.ok() ? closed : last);
}

int Launch(const Options& options) {
  const int ranks = static_cast<int>(options.ranks);
  SocketMesh mesh = MakeSocketMesh(ranks);
  std::map<pid_t, int> rank_of;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t launcher = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      // Nobody outlives the launcher, which a test may kill.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != launcher) ::_exit(trainer::kExitBug);
      const int code =
          RunRank(options, OpenSocketGroup(std::move(mesh), ckpt::Rank{rank}));
      std::fflush(nullptr);
      ::_exit(code);
    }
    rank_of[pid] = rank;
  }
  mesh.clear();
  Teller teller(options.told);
  int worst = 0;
  while (!rank_of.empty()) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WUNTRACED);
    if (pid < 0) return trainer::kExitBug;
    const int rank = rank_of[pid];
    if (WIFSTOPPED(status)) {
      teller.Tell(rank, pid, "stopped");
      continue;
    }
    const int code =
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    rank_of.erase(pid);
    teller.Tell(rank, pid, absl::StrFormat("ended %d", code));
    worst = std::max(worst, code);
    if (WIFEXITED(status)) continue;
    for (const auto& [other, unused] : rank_of) ::kill(other, SIGKILL);
  }
  return worst;
}

bool Parse(int argc, char** argv, Options* options) {
  const std::map<std::string, std::string*> words = {
      {"--run", &options->run},
      {"--told", &options->told},
      {"--storage", &options->storage}};
  const std::map<std::string, int64_t*> numbers = {
      {"--ranks", &options->ranks},       {"--base", &options->base},
      {"--saves", &options->saves},       {"--keep_last", &options->keep_last},
      {"--begin_ms", &options->begin_ms},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return false;
    const std::string name = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (words.contains(name)) {
      *words.at(name) = value;
    } else if (!numbers.contains(name) ||
               !absl::SimpleAtoi(value, numbers.at(name))) {
      return false;
    }
  }
  return !options->run.empty() && !options->told.empty() && options->ranks > 0;
}

}  // namespace
}  // namespace holdfast::tests

int main(int argc, char** argv) {
  holdfast::tests::Options options;
  if (!holdfast::tests::Parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: ckpt_saver --run=DIR --told=FILE ...\n");
    return holdfast::trainer::kExitUsage;
  }
  return holdfast::tests::Launch(options);
}
