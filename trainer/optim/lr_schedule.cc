// trainer/optim/lr_schedule.cc: warm-up, cosine, floor.

#include "trainer/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace holdfast::trainer {

double LearningRate(const OptimConfig& optim, int64_t step) {
  if (step < optim.warmup_steps) {
    return optim.lr * static_cast<double>(step) /
           static_cast<double>(optim.warmup_steps);
  }
  if (optim.decay_steps == 0) return optim.lr;
  if (step >= optim.decay_steps) return optim.min_lr;
  const double way =
      static_cast<double>(step - optim.warmup_steps) /
      static_cast<double>(optim.decay_steps - optim.warmup_steps);
  return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 *
                            (1.0 + std::cos(std::numbers::pi * way));
}

float ClipScale(double clip_norm, double norm) {
  if (clip_norm <= 0.0 || norm <= clip_norm) return 1.0f;
  return static_cast<float>(clip_norm / norm);
}

}  // namespace holdfast::trainer
