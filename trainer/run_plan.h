// trainer/run_plan.h: what a configuration will need and take, before it runs.
//
// For device = cuda every rank is taken to have a GPU of its own, eight to a
// host.
//
// Pure: nothing is opened, allocated or started. `holdfast plan` prints it,
// `train` checks its memory against the machine, and a test holds it to what a
// run really allocates.

#ifndef HOLDFAST_TRAINER_RUN_PLAN_H_
#define HOLDFAST_TRAINER_RUN_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/mesh.h"
#include "ckpt/layout/train_layout.h"
#include "trainer/config.h"
#include "trainer/model/memory_plan.h"

namespace holdfast::trainer {

// Of a resolved configuration.
ckpt::Mesh MeshOf(const Config& config);
absl::StatusOr<std::unique_ptr<ckpt::TrainLayout>> LayoutOf(
    const Config& config);

struct StagePlan {
  int64_t layers = 0;
  int64_t parameters = 0;  // on one rank, replicas counted
  int64_t in_flight = 0;   // microbatches
  MemoryPlan memory;       // of its fullest rank
};

struct RunPlan {
  ckpt::Mesh mesh;
  int64_t parameters = 0;    // of the model
  int64_t microbatches = 0;  // a step, of the DP member that has most
  int64_t tokens_per_step = 0;
  double flops_per_token = 0;
  double bubble_share = 0;
  int64_t checkpoint_bytes = 0;           // of the tensors, over all ranks
  int64_t checkpoint_bytes_rank_max = 0;  // of the fullest rank
  std::vector<StagePlan> stages;
};

// `config` is resolved.
absl::StatusOr<RunPlan> PlanRun(const Config& config);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_RUN_PLAN_H_
