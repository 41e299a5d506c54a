// tests/support/sim_cases.h: one story of a run on the simulated disk: it
// saves, something happens, it comes back; and the rules that must hold then.
//
// The rules. After whatever happened a new job finds the newest checkpoint that
// was reported as committed, or a later one whose outcome nobody was told;
// never one that was reported as aborted or failed; and every byte of it is the
// state that was there when its save began.
//
// A case is a value, so a failed one can be run again: ckpt_sim takes what
// Replay() prints.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_CASES_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_CASES_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/sim_world.h"

namespace holdfast::tests {

// Promises broken on purpose.
enum class Canary {
  kNone,
  kDiskIgnoresSync,        // the disk's Sync does nothing
  kDiskIgnoresDirSync,     // the disk's SyncDir does nothing
  kNoFileSync,             // a rank does not sync its file
  kNoPartSync,             // a rank leaves the sync of its part to the leader
  kNoDirSync,              // a rank does not sync its directory
  kVoteBeforeSync,         // a rank says yes before its bytes are durable
  kRetireBeforeCommit,     // retention counts a save that is not committed yet
  kTouchAfterYes,          // a rank removes its file when it hears nothing
  kReuseDirectory,         // every attempt is number 1
  kIgnoreSeal,             // the newest manifest wins, whoever wrote it
  kReleaseBeforeComplete,  // the optimizer may store while a unit is written
};
std::string_view NameOf(Canary canary);
absl::StatusOr<Canary> ParseCanary(std::string_view name);

struct SimCase {
  // "cut"       the power goes during the second save and its retention
  // "recovery"  the power goes during a save, and again during the restart
  // "kill"      one rank dies during the second save, the others go on
  // "fault"     an operation fails, once or from then on; training goes on
  // "late"      messages are late by minutes, at random, over several saves
  // "takeover"  rank 0 stops during a save, another job takes the run, then it
  //             goes on where it was
  std::string story = "cut";
  uint64_t seed = 1;
  // After how many storage operations of the save (of the rank, for kill) it
  // happens; beyond the last one nothing happens.
  int64_t after = 0;
  // recovery: the first cut; kill, fault: the rank.
  int64_t first_cut = 0;
  int rank = 1;
  // fault: which operation, how, and with which code.
  SimOp op = SimOp::kWrite;
  bool from_then_on = false;
  absl::StatusCode code = absl::StatusCode::kUnavailable;

  int ranks = 3;
  int keep_last = 1;
  bool object_store = false;
  int64_t late_ops = 0;  // SimDiskOptions
  Canary canary = Canary::kNone;
};

struct SimVerdict {
  absl::Status status;     // not OK: a rule is broken, and which
  int64_t found = 0;       // the step that the last job loaded
  int64_t committed = 0;   // the newest step reported as committed
  int64_t ops = 0;         // storage operations of the part that was disturbed
  bool disturbed = false;  // what should happen did happen
};

SimVerdict RunCase(const SimCase& sim_case);

// "ckpt_sim --story=cut --seed=7 --after=12"
std::string Replay(const SimCase& sim_case);
// From those arguments.
absl::StatusOr<SimCase> ParseCase(const std::vector<std::string>& arguments);

// What a sweep has crossed. Unless both steps were found by the last job, it
// never crossed the commit.
struct SimTally {
  // Newer than that is not what the disturbed save would have left.
  int64_t new_step_max = std::numeric_limits<int64_t>::max();
  int64_t cases = 0;
  int disturbed = 0;
  bool old_one = false;
  bool new_one = false;
};

// Runs a case and counts it; a broken rule fails the test and says how to
// replay it. `old_step`: what there is to find when the disturbed save is lost.
void CheckCase(const SimCase& sim_case, SimTally* tally,
               int64_t old_step = 100);

// Seeds of a sweep: `in_ci`, or what HOLDFAST_SIM_SEEDS says.
int SeedsOfSweep(int in_ci);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_CASES_H_
