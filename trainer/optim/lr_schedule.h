// trainer/optim/lr_schedule.h: the learning rate as a pure function of the
// step, so that a resume cannot start it again.
//
//   lr |      ___
//      |    /     \__
//      |   /          \___
//      |  /                ------  min_lr
//      +--+-----------+----------  step
//         warmup      decay_steps

#ifndef HOLDFAST_TRAINER_OPTIM_LR_SCHEDULE_H_
#define HOLDFAST_TRAINER_OPTIM_LR_SCHEDULE_H_

#include <cstdint>

#include "trainer/optim/optim_config.h"

namespace holdfast::trainer {

// The rate of the `step`-th update, counted from 1 as in RunStep:
//   step <= warmup_steps    lr * step / warmup_steps
//   step >= decay_steps     min_lr
//   between                 min_lr + (lr - min_lr) * (1 + cos(pi x)) / 2, with
//   x
//                           the share of the way from warmup to decay_steps
// decay_steps = 0 keeps lr for ever.
double LearningRate(const OptimConfig& optim, int64_t step);

// What multiplies every gradient: clip_norm / norm when norm is above
// clip_norm, else 1; 1 when clip_norm is 0. `norm` is finite.
float ClipScale(double clip_norm, double norm);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_OPTIM_LR_SCHEDULE_H_
