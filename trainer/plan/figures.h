// trainer/plan/figures.h: the arithmetic of a layout before it runs. Pure.
//
// Closed formulas only; what depends on a real tensor table is in run_plan.h.
// The test holds them to the published figures of the 500B plan.

#ifndef HOLDFAST_TRAINER_PLAN_FIGURES_H_
#define HOLDFAST_TRAINER_PLAN_FIGURES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace holdfast::trainer {

// Bytes a parameter that stay in memory: weight and gradient on every rank that
// holds it, master and two moments once over the DP axis. With a BF16 weight:
// 2 + 4 + 12 / dp.
constexpr double ResidentBytesPerParameter(int64_t weight_bytes, int64_t dp) {
  return static_cast<double>(weight_bytes) + 4.0 +
         12.0 / static_cast<double>(dp);
}

// Bytes a parameter in a checkpoint: weight, master, two moments. DP copies are
// not stored.
constexpr double CheckpointBytesPerParameter(int64_t weight_bytes) {
  return static_cast<double>(weight_bytes) + 12.0;
}

// The share of a step in which a stage of a non-interleaved 1F1B pipeline
// waits: (p - 1) / (m + p - 1). Narayanan et al., arXiv:2104.04473,
// section 2.2.
constexpr double BubbleShare(int64_t stages, int64_t microbatches) {
  return static_cast<double>(stages - 1) /
         static_cast<double>(microbatches + stages - 1);
}

// Microbatches whose activations stage i (from 0) keeps at once.
constexpr int64_t InFlight(int64_t microbatches, int64_t stages,
                           int64_t stage) {
  return std::min(microbatches, stages - stage);
}

// Expected share of wall time that ends up as training (Kokolis et al.,
// "Revisiting reliability in large-scale machine learning research clusters",
// HPCA 2025): N servers, r failures per server and second, u0 seconds to
// restart, dt seconds between saves, w seconds of training lost to one save.
constexpr double EffectiveTrainingTime(double servers, double failure_rate,
                                       double restart_s, double interval_s,
                                       double save_s) {
  return (1.0 - servers * failure_rate * (restart_s + interval_s / 2.0)) /
         (1.0 + save_s / interval_s);
}

// Young's interval, sqrt(2 w MTTF) (Young, CACM 17(9), 1974): seconds between
// saves that lose least when a save costs `save_s` and failures come every
// `mttf_s` on average.
inline double YoungInterval(double save_s, double mttf_s) {
  return std::sqrt(2.0 * save_s * mttf_s);
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PLAN_FIGURES_H_
