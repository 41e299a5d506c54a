// tests/support/train_outcomes.h: how a job is asked to end, and what its ranks
// end with.

#ifndef HOLDFAST_TESTS_SUPPORT_TRAIN_OUTCOMES_H_
#define HOLDFAST_TESTS_SUPPORT_TRAIN_OUTCOMES_H_

#include "gmock/gmock.h"
#include "tests/support/train_job.h"
#include "trainer/trainer.h"

namespace holdfast::tests {

// Every rank ended with `code` and some word about it.
inline auto AllEndWith(int code) {
  using trainer::TrainOutcome;
  return testing::Each(testing::AllOf(
      testing::Field("exit_code", &TrainOutcome::exit_code, code),
      testing::Field("message", &TrainOutcome::message, testing::Not(""))));
}

// Asks every rank to leave at its `look`-th look.
inline void LeaveAtLook(TrainJob& job, int at) {
  job.signals = [at](int, int look) {
    return look >= at ? trainer::SignalAction::kSaveAndLeave
                      : trainer::SignalAction::kNone;
  };
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_TRAIN_OUTCOMES_H_
