// tests/support/runs/small_runs.h: runs of a small model by the programs that
// users start, each in a process of its own, and what they left behind.
//
//   SmallRuns runs;                                   a folder, data, a config
//   const Ended ended = runs.Train("a", {.ranks = 2});    to its end
//   Running running = runs.Start("b", {.ranks = 4, .pp = 2});
//   running.WaitForText("step 3/8"); running.Signal(SIGTERM);
//
// One rank is started as `holdfast train`, more by `holdfast launch`. Waiting
// for something that does not come fails the test after a minute, and shows
// what the program had said.

#ifndef HOLDFAST_TESTS_SUPPORT_RUNS_SMALL_RUNS_H_
#define HOLDFAST_TESTS_SUPPORT_RUNS_SMALL_RUNS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tools/holdfast/child_process.h"
#include "trainer/run_records.h"

namespace holdfast::tests {

// How a program ended.
struct Ended {
  int code = -1;    // The exit code, or 128 + n by signal n.
  std::string out;  // stdout
  std::string err;  // stderr
  double seconds = 0;
};
std::ostream& operator<<(std::ostream& stream, const Ended& ended);

// A program that was started. Destroying it kills what still runs.
class Running {
 public:
  Running(tools::ChildProcess child, std::string out_file,
          std::string err_file);

  void Signal(int signal) { child_.Signal(signal); }
  bool ended() { return child_.Poll(); }
  std::string out() const;  // so far
  std::string err() const;

  // Waits until the program has said `text` on stderr. False, and a failure of
  // the test, when it ends or a minute passes before.
  bool WaitForText(const std::string& text);
  // The same for anything else; `what` is for the message.
  bool WaitUntil(const std::string& what, const std::function<bool()>& is_so);

  Ended Wait();

 private:
  tools::ChildProcess child_;
  std::string out_file_;
  std::string err_file_;
  double begun_s_;
};

// What a job is started with.
struct JobSpec {
  int ranks = 1;
  int tp = 1;
  int pp = 1;                           // dp follows
  std::vector<std::string> sets = {};   // KEY=VALUE
  std::vector<std::string> words = {};  // more words for `train`
  std::string fault = {};               // HOLDFAST_FAULT
  // Through `holdfast launch` even when there is one rank.
  bool launch = false;
};

class SmallRuns {
 public:
  SmallRuns();

  // "FOLDER/name"
  std::string Path(const std::string& name) const;
  std::string config() const { return Path("small.toml"); }
  // Token files of a quarter million tokens of text that depends on `seed`.
  std::string MakeData(const std::string& name, uint32_t seed) const;
  void WriteFile(const std::string& name, const std::string& text) const;
  // A copy of a run directory, as another mount of the same files would be.
  void CopyRun(const std::string& from, const std::string& to) const;

  Running Start(const std::string& run, const JobSpec& spec) const;
  Ended Train(const std::string& run, const JobSpec& spec) const;
  // The same, and it must end with 0.
  Ended TrainToTheEnd(const std::string& run, const JobSpec& spec) const;
  // A program of build/.../bin, with any arguments. `out_file` takes its stdout
  // instead of Ended::out.
  Ended Program(const std::string& program,
                const std::vector<std::string>& arguments,
                const std::string& out_file = "") const;
  // `ckptctl VERB ... --json`, which must end with `code`.
  nlohmann::json Ckptctl(std::vector<std::string> arguments,
                         int code = 0) const;

  // The logical digest of a checkpoint's state: "run" or "run@STEP".
  std::string Digest(const std::string& checkpoint) const;
  // Entries of `ckptctl ls`: step -> state, the newest incarnation's state
  // where there are several.
  std::map<int64_t, std::string> StatesOfSteps(const std::string& run) const;
  // The path of a shard file of a committed checkpoint.
  std::string Shard(const std::string& run, int64_t step, int rank) const;

  // The steps of a run; of those that were made twice the last making.
  std::vector<trainer::MetricsLine> Metrics(const std::string& run) const;
  std::vector<trainer::MetricsLine> AllMetrics(const std::string& run) const;
  int64_t LastStep(const std::string& run) const;  // 0 before the first
  // Events of one kind.
  std::vector<trainer::JournalEvent> Journal(const std::string& run,
                                             const std::string& event) const;
  nlohmann::json Status(const std::string& run) const;

  // Fails the test unless the steps from `first` to `last`, of which there must
  // be some, have the loss, norm and samples of `reference`, bit for bit.
  void ExpectSameSteps(const std::string& reference, const std::string& run,
                       int64_t first = 1, int64_t last = INT64_MAX) const;

  // Processes of the ranks of a job that runs, by rank.
  std::map<int, pid_t> RankPids(const std::string& run) const;
  // Waits a moment for stragglers.
  void ExpectNoProcessLeft(const std::string& run) const;

 private:
  TempDir folder_;
  mutable int started_ = 0;
};

// The contents of a file; "" when there is none.
std::string FileText(const std::string& path);
// Changes one byte of a file.
void FlipByte(const std::string& path, uint64_t offset);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_RUNS_SMALL_RUNS_H_
