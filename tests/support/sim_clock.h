// tests/support/sim_clock.h: time that a test owns.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_CLOCK_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_CLOCK_H_

#include "absl/time/time.h"
#include "ckpt/base/clock.h"

namespace holdfast::tests {

// Moves only when told to; Sleep moves it and returns at once.
class SimClock final : public ckpt::Clock {
 public:
  absl::Duration Monotonic() const override { return now_; }
  absl::Time WallTime() const override {
    return absl::FromUnixSeconds(1'700'000'000) + now_;
  }
  void Sleep(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Duration now_ = absl::Seconds(1);
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_CLOCK_H_
