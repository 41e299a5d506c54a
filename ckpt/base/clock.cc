// ckpt/base/clock.cc: the machine's clock.

#include "ckpt/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace holdfast::ckpt {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    return absl::FromChrono(
        std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallTime() const override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock& RealClock() {
  static SystemClock* const clock = new SystemClock;
  return *clock;
}

}  // namespace holdfast::ckpt
