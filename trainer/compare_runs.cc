// trainer/compare_runs.cc: one pass over both runs.

#include "trainer/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace holdfast::trainer {

std::vector<SegmentComparison> CompareSegments(
    std::span<const MetricsLine> reference,
    std::span<const MetricsLine> other) {
  std::map<int64_t, const MetricsLine*> by_step;
  for (const MetricsLine& line : reference) by_step[line.step] = &line;

  std::vector<SegmentComparison> segments;
  for (const MetricsLine& line : other) {
    if (segments.empty() || segments.back().incarnation != line.incarnation ||
        segments.back().layout != line.layout) {
      SegmentComparison segment;
      segment.incarnation = line.incarnation;
      segment.layout = line.layout;
      segment.first_step = line.step;
      segments.push_back(segment);
    }
    SegmentComparison& segment = segments.back();
    segment.last_step = line.step;
    ++segment.steps;
    const auto found = by_step.find(line.step);
    if (found == by_step.end()) {
      ++segment.missing;
      continue;
    }
    const MetricsLine& expected = *found->second;
    segment.loss_equal += line.loss_bits == expected.loss_bits;
    segment.norm_equal += line.grad_norm_bits == expected.grad_norm_bits;
    segment.samples_equal += line.sample_digest == expected.sample_digest;
    if (expected.loss != 0) {
      // A loss that is no number is as far away as can be.
      double gap =
          std::abs(line.loss - expected.loss) / std::abs(expected.loss);
      if (std::isnan(gap)) gap = std::numeric_limits<double>::infinity();
      if (segment.steps == 1) segment.loss_gap_first = gap;
      segment.loss_gap_max = std::max(segment.loss_gap_max, gap);
    }
  }
  return segments;
}

}  // namespace holdfast::trainer
