// trainer/optim/optim_config.h: AdamW, its schedule and clipping, as numbers.
//
// A plain struct that trainer/config.h fills from the keys `optim.*`.

#ifndef HOLDFAST_TRAINER_OPTIM_OPTIM_CONFIG_H_
#define HOLDFAST_TRAINER_OPTIM_OPTIM_CONFIG_H_

#include <cstdint>

namespace holdfast::trainer {

// The rate rises linearly from 0 over warmup_steps, then falls along a cosine
// to min_lr at decay_steps and stays there.
struct OptimConfig {
  double lr = 3e-4;  // The peak.
  double min_lr = 3e-5;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // Counted from step 0, warm-up included.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // Decoupled; matrices only, never norms.
  double clip_norm = 1.0;     // Of the global gradient; 0 does not clip.

  friend bool operator==(const OptimConfig&, const OptimConfig&) = default;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_OPTIM_OPTIM_CONFIG_H_
