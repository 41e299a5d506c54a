// trainer/parallel/stages.h: how many layers each pipeline stage gets.
//
// Pure arithmetic. Embedding and head each count as one layer of work, so that
// the first and the last stage get fewer:
//
//   54 layers on 4 stages   13 14 14 13      (56 units, 14 a stage)
//   12 layers on 4 stages    3  3  3  3
//    5 layers on 2 stages    2  3

#ifndef HOLDFAST_TRAINER_PARALLEL_STAGES_H_
#define HOLDFAST_TRAINER_PARALLEL_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

// Layers of each of `pp` stages; their sum is `layers`. `stages` is used as it
// is when not empty (`parallel.stages`), else layers are dealt one by one to
// the stage with the least work, ties to the one with fewer layers and then to
// the later one, which holds fewer microbatches in flight.
//
// kInvalidArgument: `stages` has not pp entries, an entry below 1, or another
//     sum; or there are fewer layers than stages. The message has the numbers.
absl::StatusOr<std::vector<int64_t>> PlanStageLayers(
    int64_t layers, int64_t pp, const std::vector<int64_t>& stages);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_STAGES_H_
