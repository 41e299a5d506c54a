// tests/support/train_job.h: whole jobs of `holdfast train`, on threads as
// ranks: trainer::Train over InprocCollectives, a checkpoint group in memory
// and a real directory.

#ifndef HOLDFAST_TESTS_SUPPORT_TRAIN_JOB_H_
#define HOLDFAST_TESTS_SUPPORT_TRAIN_JOB_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/layout/mesh.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"
#include "trainer/run_records.h"
#include "trainer/trainer.h"

namespace holdfast::tests {

// A directory with a token set, a configuration of a tiny model (two layers,
// four leaves, six steps, a save every second one) and room for runs.
class TrainJob {
 public:
  TrainJob();

  ckpt::Mesh mesh;
  trainer::TrainOptions options;  // config_path and run_dir are filled in
  // What each rank changes of that before it starts; may be empty.
  std::function<void(int rank, trainer::TrainOptions& options,
                     trainer::TrainEnv& env)>
      each;
  // What signals ask of a rank when the step thread looks for the `look`-th
  // time: 1 before the run is taken, 2 before the first step, then after each
  // of the four parts of an evaluation and after each step. May be empty.
  std::function<trainer::SignalAction(int rank, int look)> signals;

  // While Run runs: every rank that waits or will wait for another gets this
  // error, as when a process dies.
  std::function<void(const absl::Status& why)> abort;

  // The job, to the end of every rank. A rank that leaves its peers waiting
  // ends them, as a process would.
  std::vector<trainer::TrainOutcome> Run();

  std::string path(const std::string& name) const {
    return dir_.path() + "/" + name;
  }
  void Set(const std::string& key_value) { options.sets.push_back(key_value); }

  // Writes random tokens, a function of `seed`, as the token set `name`.
  void WriteTokens(const std::string& name, uint64_t seed) const;

  // The logical digest in the manifest of RUN/checkpoints/NAME; "" when there
  // is none.
  std::string DigestOf(const std::string& name) const;

  nlohmann::json Status() const;  // null when there is no status.json
  // Steps of the committed saves in the journal, in order.
  std::vector<int64_t> SavedSteps() const;
  std::vector<trainer::MetricsLine> Metrics() const;

 private:
  TempDir dir_;
};

// "" or the first step in which the two runs differ in a bit.
std::string FirstDifference(const std::vector<trainer::MetricsLine>& a,
                            const std::vector<trainer::MetricsLine>& b);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_TRAIN_JOB_H_
