// trainer/schedule/one_f_one_b.h: non-interleaved 1F1B, as one list of actions
// per stage. Pure.
//
// Stage i of p warms up with min(m, p - 1 - i) forwards, then does one forward
// and one backward by turns, then the backwards that are left. At most min(m,
// p - i) microbatches are between their forward and their backward, and
// backwards run in the order of microbatches on every stage.
//
// The two exchanges of the steady state are one action each: the neighbour does
// the same at the other end, so they complete even where no send is buffered.
//
//   p = 2, m = 3 (DrawSchedule)
//   stage 0 | F0 F1 .. B0 F2 B1 .. B2
//   stage 1 | .. F0 B0 F1 B1 F2 B2 ..

#ifndef HOLDFAST_TRAINER_SCHEDULE_ONE_F_ONE_B_H_
#define HOLDFAST_TRAINER_SCHEDULE_ONE_F_ONE_B_H_

#include <string>
#include <vector>

namespace holdfast::trainer {

enum class ActionKind {
  kRecvForward,  // Activations from the stage before.
  kForward,
  kSendForward,   // Activations to the stage after.
  kRecvBackward,  // Gradients from the stage after.
  kBackward,
  kSendBackward,  // Gradients to the stage before.
  // Both at once, with one neighbour; start both, then wait for both.
  kSendForwardRecvBackward,  // `microbatch` goes, `received` comes.
  kSendBackwardRecvForward,
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  int received = -1;  // Exchanges only.

  friend bool operator==(const Action&, const Action&) = default;
};

// What `stage` (0 to stages - 1) does for `microbatches` >= 1. The first stage
// neither receives activations nor sends gradients, the last one the reverse.
std::vector<Action> PlanOneForwardOneBackward(int stages, int stage,
                                              int microbatches);

// Forward only (evaluation): receive, compute, send, for each microbatch.
std::vector<Action> PlanForwardOnly(int stages, int stage, int microbatches);

// The largest number of microbatches whose activations a stage holds at once:
// min(microbatches, stages - stage).
int MicrobatchesInFlightMax(int stages, int stage, int microbatches);

// "F0", "B2", "recv F1", "send B0 + recv F1".
std::string ToString(const Action& action);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_SCHEDULE_ONE_F_ONE_B_H_
