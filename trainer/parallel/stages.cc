// trainer/parallel/stages.cc: layers dealt to the least loaded stage.

#include "trainer/parallel/stages.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace holdfast::trainer {

absl::StatusOr<std::vector<int64_t>> PlanStageLayers(
    int64_t layers, int64_t pp, const std::vector<int64_t>& stages) {
  if (!stages.empty()) {
    const std::string list = absl::StrJoin(stages, ", ");
    if (static_cast<int64_t>(stages.size()) != pp) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "parallel.stages = [%s] has %d entries, parallel.pp is %d; give one "
          "entry a stage",
          list, stages.size(), pp));
    }
    for (const int64_t stage : stages) {
      if (stage < 1) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "parallel.stages = [%s] has a stage of %d layers; each needs at "
            "least 1",
            list, stage));
      }
    }
    const int64_t sum =
        std::accumulate(stages.begin(), stages.end(), int64_t{0});
    if (sum != layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "parallel.stages = [%s] adds up to %d layers, model.layers is %d",
          list, sum, layers));
    }
    return stages;
  }
  if (layers < pp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.pp = %d stages need at least one layer each, model.layers is "
        "%d",
        pp, layers));
  }
  std::vector<int64_t> plan(pp, 1);
  const auto work = [&](int64_t stage) {
    return plan[stage] + (stage == 0) + (stage == pp - 1);
  };
  for (int64_t dealt = pp; dealt < layers; ++dealt) {
    int64_t best = 0;
    for (int64_t stage = 1; stage < pp; ++stage) {
      if (work(stage) < work(best) ||
          (work(stage) == work(best) && plan[stage] <= plan[best])) {
        best = stage;
      }
    }
    ++plan[best];
  }
  return plan;
}

}  // namespace holdfast::trainer
