// trainer/model/stage.cc: the ends of a stage (messages, embedding, head), and
// the layers between them.

#include "trainer/model/stage.h"

#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "trainer/model/stage_core.h"
#include "trainer/model/stage_layer.h"

namespace holdfast::trainer {
namespace {

template <typename T>
class StageOf final : public Stage {
 public:
  StageOf(const StageOptions& options, const StageOffsets& offsets,
          const std::byte* weights, DeviceCollectives* tp,
          kernels::Device& device)
      : core_(options, offsets, weights, tp, device),
        options_(core_.options),
        shape_(core_.shape),
        offsets_(core_.offsets),
        stream_(*core_.stream) {}

  absl::Status Open() { return core_.Open(); }

  StageMemory memory() const override { return core_.memory; }
  void SetGradients(float* base) override { core_.gradients = base; }
  kernels::Stream& stream() override { return stream_; }
  void SetGradientHook(GradientHook hook) override { hook_ = std::move(hook); }
  void SetWeightsHook(WeightsHook hook) override {
    weights_hook_ = std::move(hook);
  }

  std::span<std::byte> message(Message kind, int index) override {
    T* const data = core_.scratch.messages[static_cast<int>(kind)][index];
    HF_CHECK(data != nullptr, "message %d of a stage that has none",
             static_cast<int>(kind));
    return std::as_writable_bytes(
        std::span<T>(data, static_cast<size_t>(stream_count())));
  }

  absl::Status Forward(int slot_index, const Batch& batch, int message,
                       double* loss_sum) override;
  absl::Status Backward(int slot_index, int message) override;
  std::vector<float> Logits() override;

 private:
  int64_t stream_count() const { return shape_.rows * shape_.hidden; }
  T* message_data(Message kind, int index) {
    return core_.scratch.messages[static_cast<int>(kind)][index];
  }

  absl::Status Finished(int64_t part) {
    return hook_ == nullptr ? absl::OkStatus() : hook_(part);
  }
  void Needs(int64_t part) {
    if (weights_hook_ != nullptr) weights_hook_(part);
  }
  void Upload(const Batch& batch, SlotStash<T>& slot);
  absl::Status Embed(const SlotStash<T>& slot, T* output);
  absl::Status HeadForward(SlotStash<T>& slot, double* loss_sum);
  // scratch.gradient becomes that of the last layer's output.
  absl::Status HeadBackward(SlotStash<T>& slot);

  // Where the stream enters the layers of a slot.
  T* StreamInput(SlotStash<T>& slot) {
    return slot.layers.empty() ? slot.output : slot.layers[0].input;
  }
  kernels::LogitsView<T> LogitsOf() const {
    kernels::LogitsView<T> view;
    view.data = core_.scratch.logits;
    view.stride = shape_.vocab_rows;
    view.rows = shape_.rows;
    view.columns = shape_.vocab_rows;
    view.valid_columns = shape_.vocab_valid;
    view.column_begin = shape_.vocab_begin;
    return view;
  }

  StageCore<T> core_;
  const StageOptions& options_;
  const StageShape& shape_;
  const StageOffsets& offsets_;
  kernels::Stream& stream_;
  kernels::Event uploaded_ = kernels::Event::kPassed;  // The latest batch.
  GradientHook hook_;
  WeightsHook weights_hook_;
};

template <typename T>
void StageOf<T>::Upload(const Batch& batch, SlotStash<T>& slot) {
  // A stage in the middle takes nothing from the host, so never waits for it.
  if (!options_.first && !options_.last) return;
  const auto rows = static_cast<size_t>(shape_.rows);
  // The copies of the batch before may still be reading the host's memory.
  core_.device.Sync(uploaded_);
  if (options_.first) {
    HF_CHECK(batch.tokens.size() == rows, "%d tokens for %d rows",
             batch.tokens.size(), rows);
    std::copy(batch.tokens.begin(), batch.tokens.end(), core_.host.tokens);
    core_.ToDevice(slot.tokens, core_.host.tokens, shape_.rows);
  }
  if (options_.last) {
    HF_CHECK(batch.targets.size() == rows && batch.mask.size() == rows,
             "%d targets and %d mask entries for %d rows", batch.targets.size(),
             batch.mask.size(), rows);
    std::copy(batch.targets.begin(), batch.targets.end(), core_.host.targets);
    for (size_t row = 0; row < rows; ++row) {
      core_.host.token_weights[row] =
          batch.mask[row] != 0 ? batch.token_weight : 0.0f;
    }
    core_.ToDevice(slot.targets, core_.host.targets, shape_.rows);
    core_.ToDevice(slot.token_weights, core_.host.token_weights, shape_.rows);
  }
  uploaded_ = core_.device.Record(stream_);
}

template <typename T>
absl::Status StageOf<T>::Embed(const SlotStash<T>& slot, T* output) {
  kernels::EmbeddingArgs<T> args;
  args.tokens = slot.tokens;
  args.count = shape_.rows;
  args.table = core_.weight(offsets_.embedding);
  args.vocab_begin = shape_.vocab_begin;
  args.vocab_rows = shape_.vocab_valid;
  args.hidden = shape_.hidden;
  args.out = output;
  kernels::EmbeddingForward(stream_, args);
  if (options_.tp == 1) return absl::OkStatus();
  // One rank has the row, the others zeros: the sum is exact.
  kernels::Cast(stream_, output, core_.scratch.partial, stream_count());
  return core_.JoinPartial(output);
}

template <typename T>
absl::Status StageOf<T>::HeadForward(SlotStash<T>& slot, double* loss_sum) {
  StageScratch<T>& scratch = core_.scratch;
  const Linear head{offsets_.head_weight, shape_.hidden, shape_.vocab_rows};
  core_.NormForward(offsets_.final_norm, slot.output, scratch.normed,
                    slot.final_rstd);
  core_.ColumnForward(head, scratch.normed, scratch.logits, shape_.vocab_rows);

  const kernels::LogitsView<T> logits = LogitsOf();
  kernels::CrossEntropyMax(stream_, logits, scratch.row_max);
  HF_RETURN_IF_ERROR(core_.JoinMax(scratch.row_max, shape_.rows));
  kernels::CrossEntropySum(stream_, logits, scratch.row_max, slot.targets,
                           scratch.sum_exp, scratch.target_logit);
  HF_RETURN_IF_ERROR(core_.JoinSum(scratch.sum_exp, 2 * shape_.rows));
  kernels::CrossEntropyLoss(stream_, shape_.rows, scratch.sum_exp,
                            scratch.target_logit, slot.token_weights,
                            scratch.losses);

  core_.ToHost(core_.host.losses, scratch.losses, shape_.rows);
  HF_RETURN_IF_ERROR(core_.Sync());
  double sum = 0.0;
  for (int64_t row = 0; row < shape_.rows; ++row) {
    sum += static_cast<double>(core_.host.losses[row]);
  }
  *loss_sum = sum;
  return absl::OkStatus();
}

template <typename T>
absl::Status StageOf<T>::HeadBackward(SlotStash<T>& slot) {
  StageScratch<T>& scratch = core_.scratch;
  const Linear weight{offsets_.head_weight, shape_.hidden, shape_.vocab_rows};
  const Linear gradient{offsets_.head_gradient, shape_.hidden,
                        shape_.vocab_rows};
  kernels::CrossEntropyBackward(
      stream_, LogitsOf(), scratch.row_max, scratch.sum_exp, slot.targets,
      slot.token_weights, scratch.logits, shape_.vocab_rows);
  core_.NormForward(offsets_.final_norm, slot.output, scratch.normed,
                    slot.final_rstd);
  core_.BackwardWeight(gradient, scratch.logits, shape_.vocab_rows,
                       scratch.normed);
  core_.ColumnBackwardInput(weight, scratch.logits, shape_.vocab_rows, false);
  HF_RETURN_IF_ERROR(core_.JoinPartial(scratch.branch));
  core_.NormBackward(offsets_.final_norm, slot.output, slot.final_rstd,
                     scratch.branch, /*residual=*/nullptr, scratch.gradient);
  return absl::OkStatus();
}

template <typename T>
absl::Status StageOf<T>::Forward(int slot_index, const Batch& batch,
                                 int message, double* loss_sum) {
  SlotStash<T>& slot = core_.slots[slot_index];
  Upload(batch, slot);
  Needs(0);
  if (options_.first) {
    HF_RETURN_IF_ERROR(Embed(slot, StreamInput(slot)));
  } else {
    core_.Within(StreamInput(slot), message_data(Message::kInput, message),
                 stream_count());
  }
  const size_t layers = slot.layers.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    T* const output =
        layer + 1 < layers ? slot.layers[layer + 1].input : slot.output;
    Needs(static_cast<int64_t>(layer) + 1);
    HF_RETURN_IF_ERROR(LayerForward(core_, offsets_.layers[layer],
                                    slot.layers[layer], output));
  }
  if (options_.last) {
    Needs(static_cast<int64_t>(layers) + 1);
    return HeadForward(slot, loss_sum);
  }
  core_.Within(message_data(Message::kOutput, message), slot.output,
               stream_count());
  return absl::OkStatus();
}

template <typename T>
absl::Status StageOf<T>::Backward(int slot_index, int message) {
  HF_CHECK(core_.gradients != nullptr, "backward without a gradient set");
  SlotStash<T>& slot = core_.slots[slot_index];
  T* const gradient = core_.scratch.gradient;
  if (options_.last) {
    HF_RETURN_IF_ERROR(HeadBackward(slot));
    HF_RETURN_IF_ERROR(Finished(static_cast<int64_t>(slot.layers.size()) + 1));
  } else {
    core_.Within(gradient, message_data(Message::kOutputGradient, message),
                 stream_count());
  }
  for (size_t layer = slot.layers.size(); layer-- > 0;) {
    HF_RETURN_IF_ERROR(
        LayerBackward(core_, offsets_.layers[layer], slot.layers[layer]));
    HF_RETURN_IF_ERROR(Finished(static_cast<int64_t>(layer) + 1));
  }
  if (options_.first) {
    kernels::EmbeddingBackwardArgs<T> args;
    args.tokens = slot.tokens;
    args.count = shape_.rows;
    args.dout = gradient;
    args.vocab_begin = shape_.vocab_begin;
    args.vocab_rows = shape_.vocab_valid;
    args.hidden = shape_.hidden;
    args.dtable = core_.gradient(offsets_.embedding);
    kernels::EmbeddingBackward(stream_, args);
  } else {
    core_.Within(message_data(Message::kInputGradient, message), gradient,
                 stream_count());
  }
  return Finished(0);
}

template <typename T>
std::vector<float> StageOf<T>::Logits() {
  const int64_t count = shape_.rows * shape_.vocab_rows;
  std::vector<T> copy(static_cast<size_t>(count));
  core_.ToHost(copy.data(), core_.scratch.logits, count);
  const absl::Status status = core_.Sync();
  HF_CHECK(status.ok(), "%s", status.ToString());
  std::vector<float> logits;
  logits.reserve(copy.size());
  for (const T value : copy) logits.push_back(kernels::ToFloat(value));
  return logits;
}

template <typename T>
StageMemory PlanOf(const StageOptions& options) {
  const StageShape shape = StageShape::Of(options);
  Carver slots(nullptr);
  for (int slot = 0; slot < options.slots; ++slot) {
    CarveSlot<T>(options, shape, slots);
  }
  Carver scratch(nullptr);
  CarveScratch<T>(options, shape, scratch);
  Carver host(nullptr);
  CarveHostMemory(options, shape, host);
  StageMemory memory;
  memory.activations = static_cast<int64_t>(slots.used());
  memory.buffers = static_cast<int64_t>(scratch.used() + host.used());
  memory.gpu_scratch = GpuScratchBytes<T>(options, shape);
  return memory;
}

template <typename T>
absl::StatusOr<std::unique_ptr<Stage>> CreateOf(const StageOptions& options,
                                                const StageOffsets& offsets,
                                                const std::byte* weights,
                                                DeviceCollectives* tp,
                                                kernels::Device& device) {
  auto stage =
      std::make_unique<StageOf<T>>(options, offsets, weights, tp, device);
  HF_RETURN_IF_ERROR(stage->Open());
  return stage;
}

}  // namespace

StageMemory Stage::Plan(const StageOptions& options) {
  return options.compute == ComputeType::kBf16 ? PlanOf<kernels::Bf16>(options)
                                               : PlanOf<float>(options);
}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(
    const StageOptions& options, const StageOffsets& offsets,
    const std::byte* weights, DeviceCollectives* tp, kernels::Device& device) {
  HF_CHECK(options.tp == 1 || tp != nullptr, "tp = %d without collectives",
           options.tp);
  HF_CHECK(static_cast<int64_t>(offsets.layers.size()) == options.layers,
           "offsets of %d layers for a stage of %d", offsets.layers.size(),
           options.layers);
  return options.compute == ComputeType::kBf16
             ? CreateOf<kernels::Bf16>(options, offsets, weights, tp, device)
             : CreateOf<float>(options, offsets, weights, tp, device);
}

}  // namespace holdfast::trainer
