// trainer/step.cc: the step, in the order of step.h.

#include "trainer/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/optim/sharded_adamw.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/exact_sum.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step_gradients.h"
#include "trainer/step_pipeline.h"
#include "trainer/step_plan.h"
#include "trainer/step_weights.h"

namespace holdfast::trainer {
namespace {

float Milliseconds(absl::Duration time) {
  return static_cast<float>(absl::ToDoubleMilliseconds(time));
}

// Adds `sums` up over the ranks of `world`, exactly: one integer all-reduce.
template <size_t kCount>
absl::Status SumOverRanks(Collectives& world,
                          const std::array<ExactSum*, kCount>& sums) {
  std::array<int64_t, kCount * ExactSum::kWords> words;
  auto at = words.begin();
  for (ExactSum* sum : sums) {
    sum->Normalize();
    at = std::copy(sum->words().begin(), sum->words().end(), at);
  }
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(words)));
  at = words.begin();
  for (ExactSum* sum : sums) {
    std::copy(at, at + ExactSum::kWords, sum->words().begin());
    at += ExactSum::kWords;
    sum->Normalize();
  }
  return absl::OkStatus();
}

class Runner final : public StepRunner,
                     private PipelineClient,
                     private UpdateGate {
 public:
  Runner(const StepOptions& options, StepPlan plan)
      : options_(options),
        plan_(std::move(plan)),
        mesh_(*options.mesh),
        device_(*options.device),
        clock_(*options.clock),
        hosted_(options.device_mesh == nullptr ? HostedMesh(mesh_, device_)
                                               : DeviceMesh{}),
        device_mesh_(options.device_mesh == nullptr ? hosted_
                                                    : *options.device_mesh),
        adamw_(options.optim, options.numerics.compute,
               OwnedRuns(*options.layout, plan_.at)) {}

  ~Runner() override {
    // After an error work may be left, and its memory goes.
    if (weights_ != nullptr) weights_->WaitForAll();
    if (stage_ != nullptr) device_.Sync(stream());
  }

  absl::Status Open();

  MemoryPlan memory() const override { return memory_; }
  TrainState& state() override;
  absl::Status Initialise(uint64_t seed) override;
  absl::Status RefreshWeights() override;
  absl::StatusOr<StepResult> RunStep(int64_t step, int64_t counting_tokens,
                                     MicrobatchSource& source,
                                     UpdateGate* gate) override;
  absl::StatusOr<EvalResult> RunEval(int64_t microbatches,
                                     MicrobatchSource& source) override;
  kernels::Event StateEvent() override { return weights_->AllEvent(); }
  int64_t skipped_steps() const override { return skipped_; }

 private:
  // --- PipelineClient; microbatches of this member, from 0
  absl::StatusOr<Stage::Batch> BatchOf(int64_t microbatch) override;
  void OnLoss(int64_t microbatch, double loss_sum) override;
  void BeforeBackward(int64_t microbatch) override;
  void AfterBackward(int64_t microbatch) override;

  // Where all of this rank's work is ordered.
  kernels::Stream& stream() { return stage_->stream(); }

  const LocalJoinPlan::Leaf& LeafOf(int64_t microbatch) const {
    return plan_.local_join
        .leaves[static_cast<size_t>(microbatch / plan_.microbatches_per_leaf)];
  }
  bool IsLastBackward(int64_t microbatch) const {
    return microbatch + 1 == plan_.microbatches;
  }
  // Adds finished siblings of the leaf to one another, within `range`.
  void JoinLeaf(const LocalJoinPlan::Leaf& leaf, const ElementRange& range);
  // With overlap.grad_reduce: a part's gradients are final but for JoinLeaf.
  absl::Status PartFinished(int64_t part);
  // UpdateGate, with overlap.param_gather: what is before `first` is final.
  void BeforeUpdate(int64_t first, int64_t count) override;
  void Update(int64_t step, double lr, float scale, UpdateGate* gate);
  absl::Status ShareTimes(const PipelineTimes& times);

  const StepOptions options_;
  const StepPlan plan_;
  MeshCollectives& mesh_;
  kernels::Device& device_;
  const ckpt::Clock& clock_;
  DeviceMesh hosted_;  // Where the owner gave none.
  DeviceMesh& device_mesh_;
  const ShardedAdamW adamw_;

  std::unique_ptr<TrainState> state_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<GradientExchange> gradients_;
  std::unique_ptr<WeightExchange> weights_;
  std::vector<Action> train_actions_;
  MemoryPlan memory_;

  // Of the run of the pipeline under way.
  MicrobatchSource* source_ = nullptr;
  int64_t first_microbatch_ = 0;
  float token_weight_ = 0.0f;
  ExactSum loss_sum_;
  int64_t counted_tokens_ = 0;

  // overlap.grad_reduce
  std::vector<ElementRange> parts_;
  ElementRange bucket_;  // finished, and not yet on the way
  // overlap.param_gather
  UpdateGate* gate_ = nullptr;  // the owner's

  std::vector<float> times_;  // forward, backward, waiting: pp each
  int64_t skipped_ = 0;
};

absl::Status Runner::Open() {
  const StepPlan& plan = plan_;
  HF_ASSIGN_OR_RETURN(
      state_, TrainState::Create(plan.tensors, *options_.layout, plan.at,
                                 plan.local_join.slots, device_));
  HF_ASSIGN_OR_RETURN(
      stage_, Stage::Create(plan.stage, state_->StageOffsetsOf(plan.tensors),
                            state_->regions()[ckpt::kWeightRegion].data,
                            device_mesh_.tp.get(), device_));
  pipeline_ = std::make_unique<Pipeline>(
      *stage_, mesh_.mesh.pp > 1 ? device_mesh_.pp.get() : nullptr,
      plan.stage.slots, clock_);
  HF_ASSIGN_OR_RETURN(
      gradients_,
      GradientExchange::Create(device_mesh_, *state_, plan, device_, stream()));
  weights_ = std::make_unique<WeightExchange>(device_mesh_, *state_, device_,
                                              stream());
  if (options_.overlap.grad_reduce && mesh_.mesh.dp > 1) {
    parts_ = PartsOf(*state_, state_->StageOffsetsOf(plan.tensors));
  }
  if (options_.overlap.param_gather && mesh_.mesh.dp > 1) {
    weights_->CutBuckets(PartsOf(*state_, state_->StageOffsetsOf(plan.tensors)),
                         options_.overlap.bucket_kb << 10);
    stage_->SetWeightsHook(
        [this](int64_t part) { weights_->WaitForPart(part); });
  }
  train_actions_ = PlanOneForwardOneBackward(
      mesh_.mesh.pp, plan.at.pp, static_cast<int>(plan.microbatches));
  times_.resize(3 * static_cast<size_t>(mesh_.mesh.pp));

  const auto& regions = state_->regions();
  const auto bytes = [&](uint32_t region) {
    return static_cast<int64_t>(regions[region].bytes);
  };
  memory_.weights = bytes(ckpt::kWeightRegion);
  memory_.optimizer = bytes(ckpt::kMasterRegion) + bytes(ckpt::kExpAvgRegion) +
                      bytes(ckpt::kExpAvgSqRegion);
  memory_.gradients = static_cast<int64_t>(state_->gradient_buffer(0).bytes);
  memory_.live_sums = (state_->gradient_sets() - 1) * memory_.gradients;
  memory_.activations = stage_->memory().activations;
  memory_.buffers = stage_->memory().buffers + gradients_->buffer_bytes();
  memory_.gpu_scratch = stage_->memory().gpu_scratch;
  return absl::OkStatus();
}

TrainState& Runner::state() {
  // Whoever asks may look at all of it, from any stream or the host.
  if (weights_->under_way()) {
    weights_->WaitForAll();
    device_mesh_.dp->Sync(stream()).IgnoreError();  // The device keeps it.
  }
  return *state_;
}

absl::Status Runner::Initialise(uint64_t seed) {
  HF_RETURN_IF_ERROR(state().Initialise(options_.model, seed));
  return RefreshWeights();
}

absl::Status Runner::RefreshWeights() {
  HF_RETURN_IF_ERROR(weights_->Run());
  return device_mesh_.dp->Sync(stream());
}

absl::StatusOr<Stage::Batch> Runner::BatchOf(int64_t microbatch) {
  Stage::Batch batch;
  if (!plan_.stage.first && !plan_.stage.last) return batch;
  HF_ASSIGN_OR_RETURN(const Microbatch from,
                      source_->Get(first_microbatch_ + microbatch));
  batch.tokens = from.tokens;
  batch.targets = from.targets;
  batch.mask = from.mask;
  batch.token_weight = token_weight_;
  if (plan_.stage.last) {
    for (const uint8_t counts : from.mask) counted_tokens_ += counts != 0;
  }
  return batch;
}

void Runner::OnLoss(int64_t, double loss_sum) {
  // The TP ranks of the last stage have the same loss; one of them reports it.
  if (plan_.at.tp == 0) loss_sum_.Add(loss_sum);
}

void Runner::BeforeBackward(int64_t microbatch) {
  // What the forward had no use for: a tied table's way to the last stage.
  weights_->WaitForAll();
  if (!parts_.empty() && IsLastBackward(microbatch)) {
    bucket_ = {parts_.back().first + parts_.back().count, 0};
    stage_->SetGradientHook(
        [this](int64_t part) { return PartFinished(part); });
  }
  if (microbatch % plan_.microbatches_per_leaf != 0) return;
  float* const sum = state_->gradients(LeafOf(microbatch).slot);
  kernels::Zero(stream(), sum, state_->gradient_elements());
  stage_->SetGradients(sum);
}

void Runner::JoinLeaf(const LocalJoinPlan::Leaf& leaf,
                      const ElementRange& range) {
  if (range.count == 0) return;
  for (const Join& join : leaf.joins) {
    kernels::Accumulate(stream(), state_->gradients(join.from) + range.first,
                        state_->gradients(join.into) + range.first,
                        range.count);
  }
}

void Runner::AfterBackward(int64_t microbatch) {
  if ((microbatch + 1) % plan_.microbatches_per_leaf != 0) return;
  ElementRange rest{0, state_->gradient_elements()};
  if (!parts_.empty() && IsLastBackward(microbatch)) {
    // The parts are joined and on their way; behind them may lie the second
    // accumulator of a tied table.
    stage_->SetGradientHook(nullptr);
    const int64_t done = parts_.back().first + parts_.back().count;
    rest = {done, rest.count - done};
  }
  JoinLeaf(LeafOf(microbatch), rest);
}

absl::Status Runner::PartFinished(int64_t part) {
  // Parts finish from the last to the first and lie side by side.
  const ElementRange& range = parts_[static_cast<size_t>(part)];
  JoinLeaf(LeafOf(plan_.microbatches - 1), range);
  bucket_.count += bucket_.first - range.first;
  bucket_.first = range.first;
  const int64_t full = (options_.overlap.bucket_kb << 10) / 4;
  if (bucket_.count < full && part > 0) return absl::OkStatus();
  const ElementRange ready = bucket_;
  bucket_.count = 0;
  return ready.count == 0 ? absl::OkStatus() : gradients_->ReduceBeside(ready);
}

absl::StatusOr<StepResult> Runner::RunStep(int64_t step,
                                           int64_t counting_tokens,
                                           MicrobatchSource& source,
                                           UpdateGate* gate) {
  HF_CHECK(step >= 1, "steps count from 1, this is %d", step);
  source_ = &source;
  first_microbatch_ = plan_.first_microbatch;
  token_weight_ =
      counting_tokens == 0
          ? 0.0f
          : static_cast<float>(1.0 / static_cast<double>(counting_tokens));
  loss_sum_ = {};
  counted_tokens_ = 0;
  HF_ASSIGN_OR_RETURN(
      const PipelineTimes times,
      pipeline_->Run(train_actions_, plan_.microbatches, *this));

  const absl::Duration reduce_start = clock_.Monotonic();
  HF_RETURN_IF_ERROR(gradients_->Reduce());
  ExactSum squares;
  HF_RETURN_IF_ERROR(gradients_->AddSquares(adamw_.runs(), squares));
  HF_RETURN_IF_ERROR(SumOverRanks<2>(*mesh_.world, {&loss_sum_, &squares}));
  const double norm = std::sqrt(squares.Round());

  StepResult result;
  result.loss = counting_tokens == 0
                    ? 0.0f
                    : static_cast<float>(loss_sum_.Round() /
                                         static_cast<double>(counting_tokens));
  result.loss_bits = std::bit_cast<uint32_t>(result.loss);
  result.grad_norm = static_cast<float>(norm);
  result.lr = LearningRate(options_.optim, step);
  result.counting_tokens = counting_tokens;
  result.tokens = options_.batch.global_seqs * options_.model.seq_len;
  result.skipped_nonfinite =
      !std::isfinite(result.loss) || !std::isfinite(norm);

  const absl::Duration update_start = clock_.Monotonic();
  absl::Duration gather_start = update_start;
  if (result.skipped_nonfinite) {
    ++skipped_;
  } else {
    Update(step, result.lr, ClipScale(options_.optim.clip_norm, norm), gate);
    gather_start = clock_.Monotonic();
    HF_RETURN_IF_ERROR(weights_->has_buckets() ? weights_->GatherBeside()
                                               : weights_->Run());
    // The step is over when the device is through with it: a save may begin.
    // Weights beside the stream go on into the next forward.
    HF_RETURN_IF_ERROR(device_mesh_.dp->Sync(stream()));
  }
  result.reduce_ms = Milliseconds(update_start - reduce_start);
  result.update_ms = Milliseconds(gather_start - update_start);
  result.gather_ms = Milliseconds(clock_.Monotonic() - gather_start);

  HF_RETURN_IF_ERROR(ShareTimes(times));
  const auto pp = static_cast<size_t>(mesh_.mesh.pp);
  const std::span<const float> shared(times_);
  result.fwd_ms = shared.subspan(0, pp);
  result.bwd_ms = shared.subspan(pp, pp);
  result.wait_ms = shared.subspan(2 * pp, pp);
  return result;
}

void Runner::Update(int64_t step, double lr, float scale, UpdateGate* gate) {
  const TrainStateShape& shape = state_->shape();
  const auto& regions = state_->regions();
  OwnedMemory memory;
  memory.weight = regions[ckpt::kWeightRegion].data +
                  shape.owned.first * ckpt::kBlockElements * shape.weight_bytes;
  memory.master = regions[ckpt::kMasterRegion].as<float>();
  memory.exp_avg = regions[ckpt::kExpAvgRegion].as<float>();
  memory.exp_avg_sq = regions[ckpt::kExpAvgSqRegion].as<float>();
  memory.gradient = gradients_->owned();
  if (!weights_->has_buckets()) {
    adamw_.Update(stream(), memory, step, lr, scale, gate);
    return;
  }
  gate_ = gate;
  weights_->OwnedFinal(0);
  adamw_.Update(stream(), memory, step, lr, scale, this);
}

void Runner::BeforeUpdate(int64_t first, int64_t count) {
  weights_->OwnedFinal(first);
  if (gate_ != nullptr) gate_->BeforeUpdate(first, count);
}

absl::Status Runner::ShareTimes(const PipelineTimes& times) {
  const auto pp = static_cast<size_t>(mesh_.mesh.pp);
  const auto stage = static_cast<size_t>(plan_.at.pp);
  std::fill(times_.begin(), times_.end(), 0.0f);
  times_[stage] = Milliseconds(times.forward);
  times_[pp + stage] = Milliseconds(times.backward);
  times_[2 * pp + stage] = Milliseconds(times.wait);
  return mesh_.world->AllReduceMax(std::span<float>(times_));
}

absl::StatusOr<EvalResult> Runner::RunEval(int64_t microbatches,
                                           MicrobatchSource& source) {
  weights_->WaitForAll();
  const int64_t dp = mesh_.mesh.dp;
  source_ = &source;
  first_microbatch_ = mesh_.at.dp * microbatches / dp;
  const int64_t count =
      (mesh_.at.dp + 1) * microbatches / dp - first_microbatch_;
  token_weight_ = 1.0f;  // Counts or not; the value is not used.
  loss_sum_ = {};
  counted_tokens_ = 0;
  if (count > 0) {
    HF_RETURN_IF_ERROR(pipeline_
                           ->Run(PlanForwardOnly(mesh_.mesh.pp, plan_.at.pp,
                                                 static_cast<int>(count)),
                                 count, *this)
                           .status());
  }
  HF_RETURN_IF_ERROR(SumOverRanks<1>(*mesh_.world, {&loss_sum_}));
  int64_t counted = plan_.at.tp == 0 ? counted_tokens_ : 0;
  HF_RETURN_IF_ERROR(
      mesh_.world->AllReduceSum(std::span<int64_t>(&counted, 1)));
  EvalResult result;
  result.counting_tokens = counted;
  result.loss = counted == 0 ? std::numeric_limits<double>::quiet_NaN()
                             : loss_sum_.Round() / static_cast<double>(counted);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(
    const StepOptions& options) {
  HF_CHECK(options.layout != nullptr && options.mesh != nullptr &&
               options.device != nullptr && options.clock != nullptr,
           "a step runner needs layout, mesh, device and clock");
  const MeshCollectives& mesh = *options.mesh;
  HF_CHECK(mesh.mesh == options.layout->mesh(),
           "communicators of %s for a layout of %s", ckpt::ToString(mesh.mesh),
           ckpt::ToString(options.layout->mesh()));
  HF_ASSIGN_OR_RETURN(StepPlan plan,
                      PlanStep(options, ckpt::RankAt(mesh.mesh, mesh.at)));
  auto runner = std::make_unique<Runner>(options, std::move(plan));
  HF_RETURN_IF_ERROR(runner->Open());
  return runner;
}

absl::StatusOr<MemoryPlan> StepRunner::PlanMemory(const StepOptions& options,
                                                  ckpt::Rank rank) {
  HF_ASSIGN_OR_RETURN(const StepPlan plan, PlanStep(options, rank));
  return plan.memory;
}

absl::StatusOr<int64_t> StepRunner::PlanPinned(const StepOptions& options,
                                               ckpt::Rank rank) {
  HF_ASSIGN_OR_RETURN(const StepPlan plan, PlanStep(options, rank));
  return PinnedBytes(plan, *options.layout);
}

}  // namespace holdfast::trainer
