// tools/holdfast/drill.h: break a run on purpose, prove that it comes back.
//
// A drill starts real ranks with `holdfast launch`, breaks them with a real
// fault, and compares what comes back with a run that was never broken, in
// bits.

#ifndef HOLDFAST_TOOLS_HOLDFAST_DRILL_H_
#define HOLDFAST_TOOLS_HOLDFAST_DRILL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/layout/mesh.h"
#include "tools/holdfast/child_process.h"

namespace holdfast::tools {

struct DrillOptions {
  std::vector<std::string> names;  // "kill-mid-save"
  std::string run_dir;             // made by the drill; must not exist
  std::string config;
  std::vector<std::string> sets;
  // The layout of the reference and of the run that is broken, then those on
  // which it is resumed, in turn.
  std::vector<std::string> layouts = {"tp2-pp2-dp2", "tp2-pp2-dp1",
                                      "tp2-pp1-dp2"};
  // Fail unless the final loss is below the unigram entropy of the data.
  bool require_learning = false;
  bool json = false;
};

// How one drill starts jobs: the same configuration, another layout each time.
class DrillJob {
 public:
  DrillJob(const DrillOptions& options, std::string run_dir)
      : options_(options), run_dir_(std::move(run_dir)) {}

  // Prints the command, then starts it. Its output goes to the terminal.
  absl::StatusOr<ChildProcess> Start(
      const ckpt::Mesh& mesh,
      const std::vector<std::pair<std::string, std::string>>& env) const;

  const std::string& run_dir() const { return run_dir_; }
  // The largest step in metrics.jsonl; 0 when there is none yet.
  int64_t LastStep() const;

 private:
  const DrillOptions& options_;
  const std::string run_dir_;
};

// Each drill returns an exit code.
int RunKillMidSave(const DrillOptions& options);

// Validates the options and runs the drills named in them, one after another;
// the first failure's exit code.
int RunDrills(const DrillOptions& options);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_DRILL_H_
