// trainer/step_plan.cc: the batch over members and leaves, and the bytes.

#include "trainer/step_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/schedule/one_f_one_b.h"
#include "trainer/step_gradients.h"
#include "trainer/step_weights.h"

namespace holdfast::trainer {
namespace {

absl::Status PlanBatch(const StepOptions& options, int dp, StepPlan& plan) {
  const BatchConfig& batch = options.batch;
  const int64_t leaves = options.numerics.virtual_dp;
  if (batch.micro_seqs < 1 || batch.global_seqs < 1 ||
      batch.global_seqs % batch.micro_seqs != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "batch.global_seqs = %d is not a whole number of microbatches of "
        "batch.micro_seqs = %d",
        batch.global_seqs, batch.micro_seqs));
  }
  const int64_t total = batch.global_seqs / batch.micro_seqs;
  const int member = plan.at.dp;
  plan.microbatches_total = total;
  if (!options.numerics.invariant) {
    if (dp > total) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "dp = %d members share %d microbatches (batch.global_seqs = %d, "
          "batch.micro_seqs = %d); each needs at least one",
          dp, total, batch.global_seqs, batch.micro_seqs));
    }
    plan.first_microbatch = member * total / dp;
    plan.microbatches = (member + 1) * total / dp - plan.first_microbatch;
    plan.microbatches_per_leaf = plan.microbatches;
    plan.local_join = PlanLocalJoin(1, {0, 1});
    plan.owner_join = PlanRankOrderJoin(dp);
    return absl::OkStatus();
  }
  if (leaves < 1 || total % leaves != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "numerics.virtual_dp = %d does not divide the %d microbatches of a "
        "step (batch.global_seqs = %d, batch.micro_seqs = %d)",
        leaves, total, batch.global_seqs, batch.micro_seqs));
  }
  if (dp > leaves) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dp = %d is above numerics.virtual_dp = %d: a member needs at least "
        "one leaf",
        dp, leaves));
  }
  const auto leaf_count = static_cast<int>(leaves);
  const LeafRange run = LeavesOf(leaf_count, dp, member);
  plan.microbatches_per_leaf = total / leaves;
  plan.first_microbatch = run.first * plan.microbatches_per_leaf;
  plan.microbatches = run.count * plan.microbatches_per_leaf;
  plan.local_join = PlanLocalJoin(leaf_count, run);
  plan.owner_join = PlanOwnerJoin(leaf_count, dp);
  return absl::OkStatus();
}

absl::Status CheckLayout(const StepOptions& options,
                         const ModelTensors& tensors) {
  const ckpt::TrainLayout& layout = *options.layout;
  HF_CHECK(layout.tensors().size() == tensors.specs.size(),
           "the layout has %d tensors, the model %d", layout.tensors().size(),
           tensors.specs.size());
  const ckpt::DType want = options.numerics.compute == ComputeType::kBf16
                               ? ckpt::DType::kBf16
                               : ckpt::DType::kF32;
  HF_CHECK(layout.options().weight_dtype == want,
           "weights of dtype %s for compute in %s",
           ckpt::NameOf(layout.options().weight_dtype), ckpt::NameOf(want));
  for (const ckpt::StageChunks& chunks : layout.options().stages) {
    if (chunks.size() != 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a stage of %d runs of layers: interleaved stages are not built",
          chunks.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ElementRange> PartsOf(const TrainState& state,
                                  const StageOffsets& offsets) {
  const int64_t end = state.shape().block_count * ckpt::kBlockElements;
  std::vector<int64_t> first = {0};
  for (const LayerOffsets& at : offsets.layers) {
    first.push_back(std::min({at.input_norm, at.q, at.k, at.v, at.o,
                              at.post_norm, at.gate, at.up, at.down}));
  }
  // What the last stage has behind its layers, the copy of a tied table last of
  // all; the table itself lies before them.
  first.push_back(offsets.final_norm >= 0 ? offsets.final_norm : end);
  first.push_back(end);
  std::vector<ElementRange> parts;
  for (size_t part = 0; part + 1 < first.size(); ++part) {
    HF_CHECK(first[part] <= first[part + 1],
             "part %d of a stage begins at element %d, the next one at %d",
             part, first[part], first[part + 1]);
    parts.push_back({first[part], first[part + 1] - first[part]});
  }
  return parts;
}

int64_t PinnedBytes(const StepPlan& plan, const ckpt::TrainLayout& layout) {
  const ckpt::Mesh& mesh = layout.mesh();
  constexpr auto kWindow = static_cast<int64_t>(kHostedWindowBytes);
  const int64_t stream = plan.stage.micro_seqs * plan.stage.model.seq_len *
                         plan.stage.model.hidden;
  int64_t bytes = 0;
  if (mesh.tp > 1) {
    bytes += std::min<int64_t>(kWindow, stream * sizeof(float));
  }
  if (mesh.dp > 1) {
    bytes += kWindow + GradientExchange::MessageBytes(plan, layout);
  }
  if (mesh.pp == 1) return bytes;
  const int64_t element = plan.state.weight_bytes;
  // Two lanes to each neighbour.
  const int neighbours = (plan.stage.first ? 0 : 1) + (plan.stage.last ? 0 : 1);
  bytes += 2 * neighbours * Stage::kMessages * stream * element;
  // A tied table's gradient in pieces, its weights at once.
  const std::vector<ckpt::BlockRange> shares = TiedShares(layout, plan.at.tp);
  if (!shares.empty() && (plan.stage.first || plan.stage.last)) {
    bytes += GradientExchange::kTiedChunk * static_cast<int64_t>(sizeof(float));
    bytes += shares[static_cast<size_t>(plan.at.dp)].count *
             ckpt::kBlockElements * element;
  }
  return bytes;
}

absl::StatusOr<StepPlan> PlanStep(const StepOptions& options, ckpt::Rank rank) {
  const ckpt::TrainLayout& layout = *options.layout;
  const ckpt::Mesh& mesh = layout.mesh();
  HF_RETURN_IF_ERROR(CheckModel(options.model, mesh.tp));
  StepPlan plan;
  plan.at = ckpt::CoordinatesOf(mesh, rank);
  plan.tensors = BuildTensorTable(options.model, mesh.tp);
  HF_RETURN_IF_ERROR(CheckLayout(options, plan.tensors));
  HF_RETURN_IF_ERROR(PlanBatch(options, mesh.dp, plan));

  plan.stage.model = options.model;
  plan.stage.compute = options.numerics.compute;
  plan.stage.tp = mesh.tp;
  plan.stage.tp_rank = plan.at.tp;
  plan.stage.layers = layout.options().stages[plan.at.pp][0].count;
  plan.stage.first = plan.at.pp == 0;
  plan.stage.last = plan.at.pp == mesh.pp - 1;
  plan.stage.micro_seqs = options.batch.micro_seqs;
  plan.stage.slots = MicrobatchesInFlightMax(
      mesh.pp, plan.at.pp, static_cast<int>(plan.microbatches));
  if (options.device != nullptr) {
    plan.reduce_limits = ReduceLimits::For(*options.device->NewStream());
  } else if (options.plan_for_gpu) {
    plan.reduce_limits = ReduceLimits::OnGpu();
  }

  plan.state = TrainStateShape::Of(layout, plan.at);
  const StageMemory stage = Stage::Plan(plan.stage);
  MemoryPlan& memory = plan.memory;
  memory.weights = plan.state.RegionBytes(ckpt::kWeightRegion);
  for (const ckpt::TrainRegion region :
       {ckpt::kMasterRegion, ckpt::kExpAvgRegion, ckpt::kExpAvgSqRegion}) {
    memory.optimizer += plan.state.RegionBytes(region);
  }
  memory.gradients = plan.state.GradientBytes();
  memory.live_sums = (plan.local_join.slots - 1) * plan.state.GradientBytes();
  memory.activations = stage.activations;
  memory.buffers = stage.buffers + GradientExchange::BufferBytes(plan, layout);
  memory.gpu_scratch = stage.gpu_scratch;
  return plan;
}

}  // namespace holdfast::trainer
