// trainer/save_policy.h: when a save falls due, and what a save cost. Pure.

#ifndef HOLDFAST_TRAINER_SAVE_POLICY_H_
#define HOLDFAST_TRAINER_SAVE_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "trainer/config.h"

namespace holdfast::trainer {

// Only rank 0's answer counts where time decides; all ranks hear it in the
// agreement at the end of a step.
class SavePolicy {
 public:
  SavePolicy(const SaveInterval& interval, absl::Duration start)
      : interval_(interval), last_(start) {}

  // After `step` steps of the run have been made, at `now`.
  bool Due(int64_t step, absl::Duration now) const {
    if (interval_.steps > 0) return step % interval_.steps == 0;
    if (interval_.seconds > 0) {
      return now - last_ >= absl::Seconds(interval_.seconds);
    }
    return false;
  }

  void Began(absl::Duration now) { last_ = now; }

 private:
  SaveInterval interval_;
  absl::Duration last_;
};

// The stall of a save: the extra time of the step that runs beside its start
// and of the one after it, against the median of the steps that run beside no
// save, plus the time inside BeginSave. Noise shows as small values of either
// sign.
class StallMeter {
 public:
  void SaveBegan(double begin_ms) {
    begin_ms_ = begin_ms;
    affected_ms_.clear();
    watching_ = true;
  }

  // `beside_save`: a save was in flight at some time during this step. Returns
  // the stall once both affected steps are over and a median exists.
  std::optional<double> StepDone(double step_ms, bool beside_save) {
    if (watching_) {
      affected_ms_.push_back(step_ms);
      if (affected_ms_.size() < 2) return std::nullopt;
      watching_ = false;
      if (quiet_ms_.size() < kQuietMin) return std::nullopt;
      std::vector<double> sorted = quiet_ms_;
      const auto middle = sorted.begin() + sorted.size() / 2;
      std::nth_element(sorted.begin(), middle, sorted.end());
      return begin_ms_ + affected_ms_[0] + affected_ms_[1] - 2 * *middle;
    }
    // The first step warms caches up and says nothing.
    if (!beside_save && ++steps_seen_ > 1) {
      if (quiet_ms_.size() == kQuietMax) quiet_ms_.erase(quiet_ms_.begin());
      quiet_ms_.push_back(step_ms);
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kQuietMin = 3;
  static constexpr size_t kQuietMax = 101;
  std::vector<double> quiet_ms_;
  std::vector<double> affected_ms_;
  double begin_ms_ = 0;
  bool watching_ = false;
  int64_t steps_seen_ = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_SAVE_POLICY_H_
