// ckpt/base/clock.h: the time seam. Nothing else in ckpt/ and trainer/ reads a
// clock, so that a simulator can own time.

#ifndef HOLDFAST_CKPT_BASE_CLOCK_H_
#define HOLDFAST_CKPT_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace holdfast::ckpt {

class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic: never goes back, unrelated to the time of day. For deadlines and
  // durations.
  virtual absl::Duration Monotonic() const = 0;

  // Time of day, for people. One decision uses it, and only to keep more:
  // retention's keep_older_s.
  virtual absl::Time WallTime() const = 0;

  virtual void Sleep(absl::Duration duration) = 0;
};

// The machine's clock. Any thread may call it.
Clock& RealClock();

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_CLOCK_H_
