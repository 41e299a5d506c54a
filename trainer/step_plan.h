// trainer/step_plan.h: everything about a rank's steps that is known before the
// first one. Pure.

#ifndef HOLDFAST_TRAINER_STEP_PLAN_H_
#define HOLDFAST_TRAINER_STEP_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/mesh.h"
#include "trainer/model/memory_plan.h"
#include "trainer/model/stage.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/gradient_reduce.h"
#include "trainer/parallel/leaf_tree.h"
#include "trainer/step.h"
#include "trainer/train_state.h"

namespace holdfast::trainer {

struct StepPlan {
  ckpt::Coordinates at;
  ModelTensors tensors;

  // Microbatches of the global batch, and this member's run of them.
  int64_t microbatches_total = 0;
  int64_t first_microbatch = 0;
  int64_t microbatches = 0;
  // Consecutive ones that are summed into one accumulator.
  int64_t microbatches_per_leaf = 0;

  LocalJoinPlan local_join;
  OwnerJoinPlan owner_join;
  ReduceLimits reduce_limits;
  StageOptions stage;
  TrainStateShape state;
  MemoryPlan memory;
};

// Where the gradients of each part of a stage lie (Stage::GradientHook), one
// after the other; together all local blocks.
std::vector<ElementRange> PartsOf(const TrainState& state,
                                  const StageOffsets& offsets);

// Of StepRunner::PlanPinned.
int64_t PinnedBytes(const StepPlan& plan, const ckpt::TrainLayout& layout);

// For options.device; where that is null, as options.plan_for_gpu says. Errors
// as StepRunner::Create.
absl::StatusOr<StepPlan> PlanStep(const StepOptions& options, ckpt::Rank rank);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_PLAN_H_
