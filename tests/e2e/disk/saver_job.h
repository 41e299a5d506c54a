// tests/e2e/disk/saver_job.h: a ckpt_saver that runs, what its ranks were told,
// and the rules that must hold afterwards.
//
// The rules are those of support/sim_cases.h: what a new job finds is the
// newest checkpoint that was reported as committed, or a later one whose
// outcome nobody was told; never one that was reported as aborted or failed;
// and every byte of it is the state that was there when its save began.

#ifndef HOLDFAST_TESTS_E2E_DISK_SAVER_JOB_H_
#define HOLDFAST_TESTS_E2E_DISK_SAVER_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/holdfast/child_process.h"

namespace holdfast::tests {

// Over the whole life of a run: every job appends to the same file.
struct Told {
  int64_t committed = -1;  // the newest, by any rank
  int64_t begun = -1;      // the last that rank 0 began
  std::set<int64_t> steps;
  std::set<int64_t> lost;                         // aborted, failed or skipped
  std::map<std::pair<int, pid_t>, bool> stopped;  // (rank, process)
  std::vector<std::pair<int64_t, std::string>> messages;  // of rank 0
  std::string contradiction;                              // a step that is both
};
Told ReadTold(const std::string& file);

struct SaverSpec {
  std::string run;
  std::string told;
  int ranks = 2;
  int64_t base = 0;
  int64_t saves = 3;
  int keep_last = 1;
  int64_t begin_ms = 60'000;
  std::string storage = "auto";
  std::string fault = {};
};

// Killed with all its ranks when it is destroyed.
class SaverJob {
 public:
  explicit SaverJob(const SaverSpec& spec);

  // False when a minute has passed, or the job has ended.
  bool WaitUntil(const std::function<bool(const Told&)>& is_so);
  // The rank that HOLDFAST_FAULT has stopped; -1: the job ended without.
  pid_t WaitForStop();
  void Continue(pid_t stopped);

  // The code of its end; -1 when it does not come within a minute.
  int Wait();
  bool Ended() { return child_.Poll(); }
  // SIGKILL to all, and until they are gone.
  void Kill();
  Told told() const { return ReadTold(spec_.told); }
  std::string err() const;

 private:
  SaverSpec spec_;
  std::string err_file_;
  tools::ChildProcess child_;
};

// A new job of `ranks` threads claims the run and loads; every byte is compared
// with the state of the step. "" or the rule that is broken; `found` is the
// step, -1 for none.
std::string CheckRun(const std::string& run, const Told& told, int ranks,
                     int64_t* found);

// What `ckptctl WORDS... --json` prints, "" when it ends with another code than
// `code`.
std::string Ckptctl(const std::string& scratch, std::vector<std::string> words,
                    int code = 0);

// HOLDFAST_E2E_ALL is set: the whole of a sweep, not a sample.
bool WholeSweep();

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_E2E_DISK_SAVER_JOB_H_
