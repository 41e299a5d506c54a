// trainer/compare_runs.h: two runs step by step, in bits. Pure.
//
// One run is the reference, never interrupted. The other was broken and
// resumed; each of its segments (an incarnation on one layout) is compared with
// the reference's steps of the same number. Of a step that was made twice the
// last making counts.

#ifndef HOLDFAST_TRAINER_COMPARE_RUNS_H_
#define HOLDFAST_TRAINER_COMPARE_RUNS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/run_records.h"

namespace holdfast::trainer {

struct SegmentComparison {
  uint32_t incarnation = 0;
  std::string layout;
  int64_t first_step = 0;
  int64_t last_step = 0;
  int64_t steps = 0;          // compared
  int64_t missing = 0;        // without a reference step
  int64_t loss_equal = 0;     // steps with equal loss bits
  int64_t norm_equal = 0;     // ... gradient norm bits
  int64_t samples_equal = 0;  // ... sample digests
  double loss_gap_first = 0;  // relative difference of the first step's loss
  double loss_gap_max = 0;    // the largest

  bool bits_equal() const {
    return missing == 0 && loss_equal == steps && norm_equal == steps;
  }
  bool all_samples_equal() const {
    return missing == 0 && samples_equal == steps;
  }
};

// Segments in the order of their steps. Both inputs are what ReadMetrics gives.
std::vector<SegmentComparison> CompareSegments(
    std::span<const MetricsLine> reference, std::span<const MetricsLine> other);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_COMPARE_RUNS_H_
