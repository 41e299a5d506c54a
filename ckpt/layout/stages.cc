// ckpt/layout/stages.cc: which layers go to which pipeline stage. Pure.

#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/layout/train_layout.h"

namespace holdfast::ckpt {

absl::StatusOr<std::vector<StageChunks>> StagesFromCounts(
    int layers, const std::vector<int>& layers_per_stage) {
  std::vector<StageChunks> stages;
  int64_t first = 0;
  for (const int count : layers_per_stage) {
    if (count < 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "stages [%s]: stage %d has %d layers; each needs at least 1",
          absl::StrJoin(layers_per_stage, ", "), stages.size(), count));
    }
    stages.push_back({{.first = static_cast<int>(first), .count = count}});
    first += count;
    if (first > layers) break;
  }
  if (first != layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("stages [%s] add up to %d layers, the model has %d",
                        absl::StrJoin(layers_per_stage, ", "),
                        std::accumulate(layers_per_stage.begin(),
                                        layers_per_stage.end(), int64_t{0}),
                        layers));
  }
  return stages;
}

absl::StatusOr<std::vector<StageChunks>> EvenStages(int layers, int pp,
                                                    double embedding_layers,
                                                    double head_layers) {
  if (pp < 1 || layers < pp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d layers on pp = %d stages: each stage needs at least one layer",
        layers, pp));
  }
  std::vector<int> counts(pp, 1);
  const auto work = [&](int stage) {
    return counts[stage] + (stage == 0 ? embedding_layers : 0) +
           (stage == pp - 1 ? head_layers : 0);
  };
  // One layer at a time to the stage with the least work. Ties go to the stage
  // with fewer layers, then to the later one, which keeps fewer microbatches.
  for (int dealt = pp; dealt < layers; ++dealt) {
    int best = 0;
    for (int stage = 1; stage < pp; ++stage) {
      if (work(stage) < work(best) ||
          (work(stage) == work(best) && counts[stage] <= counts[best])) {
        best = stage;
      }
    }
    ++counts[best];
  }
  return StagesFromCounts(layers, counts);
}

}  // namespace holdfast::ckpt
