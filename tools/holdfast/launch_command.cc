// tools/holdfast/launch_command.cc: starts the ranks of a job on this machine
// and answers for them.
//
//   launch -> mpirun (own process group) -> wrapper -> rank, once a rank
//
// mpirun only wires the ranks up. Their output comes here through two pipes
// with names, so that mpirun's own words do not mix in; signals go from here to
// the ranks; how each rank ended comes back in files (launch_rank.h). Whoever
// in this chain dies takes with it what it has started.

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "tools/common/text.h"
#include "tools/holdfast/child_process.h"
#include "tools/holdfast/commands.h"
#include "tools/holdfast/launch_rank.h"
#include "tools/holdfast/launch_verdict.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/failure_report.h"
#include "trainer/run_records.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "holdfast launch";
// After --timeout the ranks have this long to save and leave.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(120);
// mpirun needs a moment to clean up after the last rank.
constexpr absl::Duration kMpirunTimeout = absl::Seconds(20);
constexpr int kPollMs = 100;
// timeout(1) signals a process and then its group. Within this time of one
// SIGTERM or SIGINT another one is the same wish; longer than the ranks' own
// measure (trainer/fault/signals.h), so that they agree.
constexpr int64_t kSameWishMs = 500;

int64_t NowMs() { return absl::ToUnixMillis(ckpt::RealClock().WallTime()); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

bool IsOnPath(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::stringstream parts(path == nullptr ? "" : path);
  for (std::string part; std::getline(parts, part, ':');) {
    if (access((part + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "this host";
  return name;
}

// What other launchers left in the environment would make mpirun or the ranks
// believe that they belong to another job.
bool IsOfAnotherLauncher(std::string_view variable) {
  for (const char* prefix : {"SLURM_", "PMIX_", "PMI_", "OMPI_COMM_WORLD_",
                             "OMPI_UNIVERSE_SIZE", "ORTE_"}) {
    if (variable.starts_with(prefix)) return true;
  }
  return false;
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}
  ~Launcher() {
    if (!dir_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(dir_, ignored);
    }
  }

  int Run() {
    if (const int code = Prepare(); code != 0) return code;
    start_ms_ = NowMs();
    if (!Start()) return trainer::kExitIo;
    Watch();
    Sweep();
    return Conclude();
  }

 private:
  int Prepare();
  std::vector<std::string> MpirunCommand() const;
  void SetEnvironment() const;
  bool Start();
  void Watch();
  void Relay();
  void OnSignal(int signal);
  void PassSignalsOn();
  void KillRanks();
  void Sweep();
  std::vector<RankEnd> ReadEnds() const;
  int Conclude();
  void SayFailure(const LaunchVerdict& verdict,
                  const std::vector<RankEnd>& ends);
  void WriteStatus(const LaunchVerdict& verdict);
  int Incarnation() const;
  std::optional<pid_t> PidOf(int rank) const;

  const LaunchOptions& options_;
  std::string dir_;
  std::string run_dir_;
  int64_t start_ms_ = 0;
  int stdout_ = -1;
  int stderr_ = -1;
  int signals_ = -1;
  pid_t mpirun_ = -1;
  int mpirun_status_ = 0;
  bool running_ = false;
  // Signals asked for so far, in order, and how many each rank has got.
  std::vector<int> wanted_;
  int64_t leave_ms_ = 0;  // When the last one to leave came.
  std::vector<size_t> passed_on_;
};

int Launcher::Prepare() {
  run_dir_ = RunDirOf(options_.command);
  passed_on_.resize(static_cast<size_t>(options_.ranks), 0);
  if (options_.ranks > 1 && !IsOnPath("mpirun")) {
    std::fprintf(stderr,
                 "%s: %d ranks need mpirun, which is not on PATH (Debian "
                 "package openmpi-bin); -n 1 works without\n",
                 kProgram, options_.ranks);
    return trainer::kExitUsage;
  }
  const char* const tmp = std::getenv("TMPDIR");
  std::string name =
      absl::StrFormat("%s/holdfast-launch-XXXXXX",
                      tmp != nullptr && tmp[0] != '\0' ? tmp : "/tmp");
  if (mkdtemp(name.data()) == nullptr) {
    std::fprintf(stderr, "%s: making %s: %s\n", kProgram, name.c_str(),
                 strerror(errno));
    return trainer::kExitIo;
  }
  dir_ = name;
  for (const auto& [path, descriptor] :
       {std::pair{LaunchStdout(dir_), &stdout_},
        std::pair{LaunchStderr(dir_), &stderr_}}) {
    // Open for both, so that it never ends while ranks come and go.
    if (mkfifo(path.c_str(), 0600) != 0 ||
        (*descriptor = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)) <
            0) {
      std::fprintf(stderr, "%s: making %s: %s\n", kProgram, path.c_str(),
                   strerror(errno));
      return trainer::kExitIo;
    }
  }
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  return 0;
}

std::vector<std::string> Launcher::MpirunCommand() const {
  std::vector<std::string> words;
  if (options_.ranks > 1) {
    words = {"mpirun", "-n", absl::StrFormat("%d", options_.ranks),
             // Ranks may outnumber cores, and have threads of their own.
             "--oversubscribe", "--bind-to", "none",
             // Shared memory only; the copying system call is forbidden in many
             // containers.
             "--mca", "btl", "vader,self", "--mca",
             "btl_vader_single_copy_mechanism", "none"};
    if (geteuid() == 0) words.push_back("--allow-run-as-root");
    if (options_.ranks > AvailableCores()) {
      words.insert(words.end(), {"--mca", "mpi_yield_when_idle", "1"});
    }
  }
  words.insert(words.end(),
               {OwnProgramPath(), "launch", "--rank-dir", dir_, "--"});
  words.insert(words.end(), options_.command.begin(), options_.command.end());
  return words;
}

void Launcher::SetEnvironment() const {
  std::vector<std::string> foreign;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (IsOfAnotherLauncher(text)) {
      foreign.emplace_back(text.substr(0, text.find('=')));
    }
  }
  for (const std::string& name : foreign) unsetenv(name.c_str());
  setenv("OMP_NUM_THREADS",
         absl::StrFormat("%d", std::max(1, AvailableCores() / options_.ranks))
             .c_str(),
         /*overwrite=*/0);
  char tty[256] = "";
  if (isatty(STDERR_FILENO) != 0 &&
      ttyname_r(STDERR_FILENO, tty, sizeof(tty)) == 0) {
    setenv(kLaunchTtyVariable, tty, 1);
  } else {
    unsetenv(kLaunchTtyVariable);
  }
  for (const std::string& setting : options_.env) {
    const size_t equals = setting.find('=');
    setenv(setting.substr(0, equals).c_str(),
           setting.substr(equals + 1).c_str(), 1);
  }
}

bool Launcher::Start() {
  std::fflush(nullptr);
  const pid_t launcher = getpid();
  mpirun_ = fork();
  if (mpirun_ < 0) {
    std::fprintf(stderr, "%s: fork: %s\n", kProgram, strerror(errno));
    return false;
  }
  running_ = true;
  if (mpirun_ > 0) {
    setpgid(mpirun_, mpirun_);
    return true;
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(128 + SIGTERM);
  // A key on the terminal reaches the launcher alone.
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  SetEnvironment();
  const int null = open("/dev/null", O_RDONLY);
  const int log =
      open((dir_ + "/mpirun.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  const std::vector<std::string> words = MpirunCommand();
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
  _exit(trainer::kExitIo);
}

void Launcher::Relay() {
  char buffer[65536];
  for (const auto& [from, to] :
       {std::pair{stdout_, STDOUT_FILENO}, std::pair{stderr_, STDERR_FILENO}}) {
    ssize_t got;
    while ((got = read(from, buffer, sizeof(buffer))) > 0) {
      for (ssize_t done = 0; done < got;) {
        const ssize_t wrote =
            write(to, buffer + done, static_cast<size_t>(got - done));
        if (wrote < 0 && errno != EINTR) break;  // Nobody reads: drop it.
        if (wrote > 0) done += wrote;
      }
    }
  }
}

std::optional<pid_t> Launcher::PidOf(int rank) const {
  int pid = 0;
  std::ifstream file(RankPidFile(dir_, rank));
  if (!(file >> pid) || pid <= 1) return std::nullopt;
  return pid;
}

void Launcher::OnSignal(int signal) {
  if (signal == SIGCHLD) return;
  // The terminal is gone: to a rank that is a wish to save and leave.
  if (signal == SIGHUP) signal = SIGTERM;
  const auto leaves = std::count_if(wanted_.begin(), wanted_.end(),
                                    [](int s) { return s != SIGUSR1; });
  if (signal != SIGUSR1) {
    const int64_t now_ms =
        absl::ToInt64Milliseconds(ckpt::RealClock().Monotonic());
    if (leaves > 0 && now_ms - leave_ms_ < kSameWishMs) return;
    leave_ms_ = now_ms;
    if (leaves == 0) {
      std::fprintf(stderr,
                   "%s: %s: the ranks save and leave; once more: at once\n",
                   kProgram, strsignal(signal));
    }
    if (leaves >= 2) {
      KillRanks();
      return;
    }
  }
  wanted_.push_back(signal);
}

// Ranks that have not started yet get theirs as soon as they have.
void Launcher::PassSignalsOn() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    size_t& passed = passed_on_[static_cast<size_t>(rank)];
    if (passed == wanted_.size()) continue;
    const std::optional<pid_t> pid = PidOf(rank);
    if (!pid.has_value() ||
        access(RankEndFile(dir_, rank).c_str(), F_OK) == 0) {
      continue;
    }
    while (passed < wanted_.size()) kill(*pid, wanted_[passed++]);
  }
}

void Launcher::KillRanks() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::optional<pid_t> pid = PidOf(rank);
    if (pid.has_value() && access(RankEndFile(dir_, rank).c_str(), F_OK) != 0) {
      kill(*pid, SIGKILL);
    }
  }
}

void Launcher::Watch() {
  ckpt::Clock& clock = ckpt::RealClock();
  const absl::Duration start = clock.Monotonic();
  bool timed_out = false;
  while (running_) {
    pollfd files[3] = {
        {signals_, POLLIN, 0}, {stdout_, POLLIN, 0}, {stderr_, POLLIN, 0}};
    poll(files, 3, kPollMs);
    Relay();
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
      OnSignal(static_cast<int>(info.ssi_signo));
    }
    PassSignalsOn();
    if (waitpid(mpirun_, &mpirun_status_, WNOHANG) == mpirun_) running_ = false;
    if (options_.timeout_s <= 0) continue;
    const absl::Duration over =
        clock.Monotonic() - start - absl::Seconds(options_.timeout_s);
    if (over > absl::ZeroDuration() && !timed_out) {
      timed_out = true;
      std::fprintf(stderr, "%s: %g s are over: the ranks save and leave\n",
                   kProgram, options_.timeout_s);
      wanted_.push_back(SIGTERM);
    } else if (over > kLeaveTimeout) {
      KillRanks();
      if (over > kLeaveTimeout + kMpirunTimeout) killpg(mpirun_, SIGKILL);
    }
  }
  Relay();
}

// mpirun has ended. A rank can outlive its wrapper by the time that a signal
// takes; nothing is left behind.
void Launcher::Sweep() {
  for (int tries = 0; tries < 50; ++tries) {
    bool left = false;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const std::optional<pid_t> pid = PidOf(rank);
      if (pid.has_value() &&
          access(RankEndFile(dir_, rank).c_str(), F_OK) != 0 &&
          kill(*pid, 0) == 0) {
        left = true;
      }
    }
    if (!left) break;
    if (tries == 10) KillRanks();
    ckpt::RealClock().Sleep(absl::Milliseconds(20));
  }
  Relay();
}

std::vector<RankEnd> Launcher::ReadEnds() const {
  std::vector<RankEnd> ends;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (const auto end = DecodeRankEnd(ReadFile(RankEndFile(dir_, rank)))) {
      ends.push_back(*end);
    }
  }
  return ends;
}

// The newest incarnation that this launch has made or used; 0 for none.
int Launcher::Incarnation() const {
  int newest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator
           entry(run_dir_ + "/incarnations", error),
       end;
       !error && entry != end; entry.increment(error)) {
    newest = std::max(newest, std::atoi(entry->path().filename().c_str()));
  }
  return newest;
}

int Launcher::Conclude() {
  const std::vector<RankEnd> ends = ReadEnds();
  if (ends.empty()) {
    std::fprintf(stderr, "%s: no rank has started; mpirun says:\n%s", kProgram,
                 ReadFile(dir_ + "/mpirun.log").c_str());
    return trainer::kExitIo;
  }
  std::vector<trainer::FailureReport> reports;
  if (const int incarnation = Incarnation(); incarnation > 0) {
    reports = trainer::ReadFailureReports(
        trainer::IncarnationDir(run_dir_, static_cast<uint32_t>(incarnation)));
    std::erase_if(reports, [&](const trainer::FailureReport& report) {
      return report.time_unix_ms < start_ms_;
    });
  }
  const LaunchVerdict verdict = JudgeLaunch(options_.ranks, ends, reports);
  if (verdict.first_rank.has_value()) {
    SayFailure(verdict, ends);
    WriteStatus(verdict);
  }
  return verdict.exit_code;
}

void Launcher::SayFailure(const LaunchVerdict& verdict,
                          const std::vector<RankEnd>& ends) {
  const int rank = *verdict.first_rank;
  std::vector<std::vector<std::string>> rows;
  rows.push_back(
      {"  first failing rank",
       absl::StrFormat("%d of %d on %s", rank, options_.ranks, HostName())});
  rows.push_back({"  what", verdict.what});
  for (const RankEnd& end : ends) {
    if (end.rank != rank) continue;
    rows.push_back(
        {"  when",
         absl::StrFormat(
             "%s after the start",
             DurationText(static_cast<double>(end.time_unix_ms - start_ms_) /
                          1000))});
  }
  if (const int incarnation = Incarnation(); incarnation > 0) {
    const std::string log = trainer::RankLogPath(
        run_dir_, static_cast<uint32_t>(incarnation), rank);
    if (access(log.c_str(), R_OK) == 0) rows.push_back({"  log", log});
  }
  rows.push_back({"  exit code", absl::StrFormat("%d", verdict.exit_code)});
  rows.push_back({"  next", NextAction(verdict.exit_code)});
  std::fprintf(stderr, "%s: the job failed\n%s", kProgram,
               TableText(rows).c_str());
}

// Schedulers and people look into status.json; a rank that was killed could not
// write it.
void Launcher::WriteStatus(const LaunchVerdict& verdict) {
  const int incarnation = Incarnation();
  if (incarnation == 0) return;
  const auto status = nlohmann::json::parse(
      ReadFile(run_dir_ + "/status.json"), nullptr, /*allow_exceptions=*/false);
  int64_t step = 0;
  if (status.is_object()) {
    const double time = status.value("time", 0.0);
    if (status.contains("exit_code") &&
        time * 1000 >= static_cast<double>(start_ms_)) {
      return;  // A rank has had the last word.
    }
    step = status.value("step", int64_t{0});
  }
  trainer::WriteStatusFile(
      run_dir_, "failed", step, static_cast<uint32_t>(incarnation),
      verdict.exit_code,
      absl::StrFormat("rank %d: %s", *verdict.first_rank, verdict.what))
      .IgnoreError();
}

}  // namespace

int RunLaunch(const LaunchOptions& options) {
  if (options.command.empty()) {
    std::fprintf(stderr,
                 "%s: what shall the ranks run? Give it after --: "
                 "holdfast launch -n 8 -- train --config FILE --run DIR\n",
                 kProgram);
    return trainer::kExitUsage;
  }
  if (!options.rank_dir.empty()) {
    return RunRankWrapper(options.rank_dir, options.command);
  }
  for (const std::string& setting : options.env) {
    if (setting.find('=') == std::string::npos || setting[0] == '=') {
      std::fprintf(stderr, "%s: --env %s: KEY=VALUE is expected\n", kProgram,
                   setting.c_str());
      return trainer::kExitUsage;
    }
  }
  return Launcher(options).Run();
}

}  // namespace holdfast::tools
