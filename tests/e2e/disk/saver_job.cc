// tests/e2e/disk/saver_job.cc: see saver_job.h.

#include "tests/e2e/disk/saver_job.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "tests/support/party.h"

namespace holdfast::tests {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr absl::Duration kNap = absl::Milliseconds(1);

tools::ChildProcess StartSaver(const SaverSpec& spec,
                               const std::string& err_file) {
  tools::ChildOptions child;
  child.argv = {HOLDFAST_BIN_DIR "/ckpt_saver",
                "--run=" + spec.run,
                "--told=" + spec.told,
                absl::StrFormat("--ranks=%d", spec.ranks),
                absl::StrFormat("--base=%d", spec.base),
                absl::StrFormat("--saves=%d", spec.saves),
                absl::StrFormat("--keep_last=%d", spec.keep_last),
                absl::StrFormat("--begin_ms=%d", spec.begin_ms),
                "--storage=" + spec.storage};
  child.env = {{"HOLDFAST_FAULT", spec.fault}};
  child.stderr_file = err_file;
  auto started = tools::ChildProcess::Start(child);
  HF_CHECK(started.ok(), "%s", started.status().ToString());
  return *std::move(started);
}

}  // namespace

Told ReadTold(const std::string& file) {
  Told told;
  std::set<int64_t> committed;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int rank = 0;
    pid_t pid = 0;
    std::string what;
    int64_t step = 0;
    words >> rank >> pid >> what;
    if (what == "stopped") told.stopped[{rank, pid}] = true;
    if (what == "ended") told.stopped.erase({rank, pid});
    if (what == "stopped" || what == "ended" || what == "claimed") continue;
    words >> step;
    if (what == "begins") {
      told.steps.insert(step);
      if (rank == 0) told.begun = step;
    } else if (what == "committed") {
      committed.insert(step);
      told.committed = std::max(told.committed, step);
    } else if (what != "unknown") {
      told.lost.insert(step);
    }
    if (rank == 0 && what != "begins") told.messages.emplace_back(step, line);
  }
  for (const int64_t step : committed) {
    if (told.lost.contains(step)) {
      told.contradiction = absl::StrFormat(
          "step %d was reported as committed and as lost", step);
    }
  }
  return told;
}

SaverJob::SaverJob(const SaverSpec& spec)
    : spec_(spec),
      err_file_(spec.told + ".err"),
      child_(StartSaver(spec_, err_file_)) {}

bool SaverJob::WaitUntil(const std::function<bool(const Told&)>& is_so) {
  const absl::Duration end = ckpt::RealClock().Monotonic() + kPatience;
  while (ckpt::RealClock().Monotonic() < end) {
    const bool over = child_.Poll();
    if (is_so(told())) return true;
    if (over) return false;
    ckpt::RealClock().Sleep(kNap);
  }
  return false;
}

pid_t SaverJob::WaitForStop() {
  pid_t stopped = -1;
  WaitUntil([&](const Told& told) {
    if (told.stopped.empty()) return false;
    stopped = told.stopped.begin()->first.second;
    return true;
  });
  return stopped;
}

void SaverJob::Continue(pid_t stopped) { ::kill(stopped, SIGCONT); }

int SaverJob::Wait() {
  return child_.WaitFor(kPatience) ? child_.exit_code() : -1;
}

void SaverJob::Kill() {
  if (!child_.Poll()) child_.SignalGroup(SIGKILL);
  child_.WaitFor(kPatience);
}

std::string SaverJob::err() const {
  std::ifstream file(err_file_, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string CheckRun(const std::string& run, const Told& told, int ranks,
                     int64_t* found) {
  if (!told.contradiction.empty()) return told.contradiction;
  ckpt::CheckpointerOptions options;
  options.run_dir = run;
  std::mutex mutex;
  std::string broken;
  *found = -1;
  OnRanks(ranks, options, [&](Party& party) {
    const auto loaded = party.checkpointer().ClaimAndLoad({});
    std::string wrong;
    if (!loaded.ok()) {
      wrong = "coming back: " + loaded.status().ToString();
    } else if (loaded->loaded) {
      wrong = party.Compare(loaded->step);
      if (wrong.empty() && !loaded->stepped_over.empty()) {
        wrong = "stepped over " + loaded->stepped_over[0].reason;
      }
    }
    party.checkpointer().Close().IgnoreError();
    const std::lock_guard<std::mutex> lock(mutex);
    if (!wrong.empty()) broken = wrong;
    if (loaded.ok() && loaded->loaded) *found = loaded->step;
  });
  if (!broken.empty()) return broken;
  if (*found < told.committed) {
    return absl::StrFormat(
        "found step %d, although step %d was reported as committed", *found,
        told.committed);
  }
  if (told.lost.contains(*found)) {
    return absl::StrFormat("found step %d, which was reported as lost", *found);
  }
  if (*found >= 0 && !told.steps.contains(*found)) {
    return absl::StrFormat("found step %d, which nobody saved", *found);
  }
  return "";
}

std::string Ckptctl(const std::string& scratch, std::vector<std::string> words,
                    int code) {
  tools::ChildOptions child;
  child.argv = {HOLDFAST_BIN_DIR "/ckptctl"};
  child.argv.insert(child.argv.end(), words.begin(), words.end());
  child.argv.push_back("--json");
  child.stdout_file = scratch + "/ckptctl.out";
  child.stderr_file = scratch + "/ckptctl.err";
  auto started = tools::ChildProcess::Start(child);
  if (!started.ok() || !started->WaitFor(kPatience) ||
      started->exit_code() != code) {
    return "";
  }
  std::ifstream file(child.stdout_file, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool WholeSweep() { return std::getenv("HOLDFAST_E2E_ALL") != nullptr; }

}  // namespace holdfast::tests
