// trainer/run_plan.cc: sums over the layout.

#include "trainer/run_plan.h"

#include <algorithm>

#include "ckpt/base/status_macros.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/communication_memory.h"
#include "trainer/plan/figures.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

int64_t StoredBytes(const ckpt::TrainLayout& layout, ckpt::Rank rank) {
  int64_t bytes = 0;
  for (const ckpt::Fragment& fragment : layout.StoredBy(rank).fragments) {
    bytes += fragment.count * ckpt::SizeOf(layout.items()[fragment.item].dtype);
  }
  return bytes;
}

// Microbatches of the DP member that has most of them: the step waits for it.
int64_t FullestMember(const Config& config) {
  const int64_t total = config.batch.global_seqs / config.batch.micro_seqs;
  const int64_t dp = config.parallel.dp;
  const int64_t units =
      config.numerics.invariant ? config.numerics.virtual_dp : total;
  return (units + dp - 1) / dp * (total / units);
}

}  // namespace

ckpt::Mesh MeshOf(const Config& config) {
  ckpt::Mesh mesh;
  mesh.tp = static_cast<int>(config.parallel.tp);
  mesh.pp = static_cast<int>(config.parallel.pp);
  mesh.dp = static_cast<int>(config.parallel.dp);
  return mesh;
}

absl::StatusOr<std::unique_ptr<ckpt::TrainLayout>> LayoutOf(
    const Config& config) {
  ckpt::TrainLayoutOptions options;
  options.mesh = MeshOf(config);
  HF_ASSIGN_OR_RETURN(
      options.stages,
      ckpt::StagesFromCounts(static_cast<int>(config.model.layers),
                             std::vector<int>(config.parallel.stages.begin(),
                                              config.parallel.stages.end())));
  options.weight_dtype = config.numerics.compute == ComputeType::kBf16
                             ? ckpt::DType::kBf16
                             : ckpt::DType::kF32;
  const ModelTensors tensors = BuildTensorTable(config.model, options.mesh.tp);
  return ckpt::TrainLayout::Create(tensors.specs, options);
}

absl::StatusOr<RunPlan> PlanRun(const Config& config) {
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::TrainLayout> layout,
                      LayoutOf(config));
  RunPlan plan;
  plan.mesh = MeshOf(config);
  plan.parameters = ParameterCount(config.model);
  plan.microbatches = FullestMember(config);
  plan.tokens_per_step = config.batch.global_seqs * config.model.seq_len;
  plan.flops_per_token = FlopsPerToken(config.model);
  plan.bubble_share = BubbleShare(plan.mesh.pp, plan.microbatches);

  StepOptions options;
  options.model = config.model;
  options.optim = config.optim;
  options.numerics = config.numerics;
  options.batch = config.batch;
  options.layout = layout.get();
  options.plan_for_gpu = config.device == DeviceChoice::kCuda;
  for (int pp = 0; pp < plan.mesh.pp; ++pp) {
    StagePlan stage;
    for (const ckpt::LayerChunk& chunk : layout->options().stages[pp]) {
      stage.layers += chunk.count;
    }
    stage.in_flight = InFlight(plan.microbatches, plan.mesh.pp, pp);
    for (const ckpt::LocalTensor& tensor : layout->TensorsOf(0, pp)) {
      stage.parameters += tensor.elements;
    }
    // Members differ by a block and by the leaves they sum.
    for (int dp = 0; dp < plan.mesh.dp; ++dp) {
      const ckpt::Rank rank = ckpt::RankAt(
          plan.mesh, {.tp = 0, .cp = 0, .ep = 0, .dp = dp, .pp = pp});
      HF_ASSIGN_OR_RETURN(MemoryPlan memory,
                          StepRunner::PlanMemory(options, rank));
      if (config.device == DeviceChoice::kCuda) {
        memory.communication =
            PlanNcclMemory(plan.mesh, rank, kGpusPerHost).device();
        memory.buffers += memory.gpu_scratch;
      }
      if (memory.total() > stage.memory.total()) stage.memory = memory;
    }
    plan.stages.push_back(stage);
  }
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const int64_t bytes = StoredBytes(*layout, ckpt::Rank{rank});
    plan.checkpoint_bytes += bytes;
    plan.checkpoint_bytes_rank_max =
        std::max(plan.checkpoint_bytes_rank_max, bytes);
  }
  return plan;
}

}  // namespace holdfast::trainer
