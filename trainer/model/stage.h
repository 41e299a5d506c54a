// trainer/model/stage.h: one pipeline stage of the model on one rank: forward
// and backward of a microbatch as a straight list of kernel calls.
//
// Numbers. T is float or Bf16. Every matrix product sums in FP32; what a TP
// group computes in parts is added as FP32 in rank order and rounded to T once.
// The residual stream is rounded to T after attention and after the MLP of each
// layer, and its gradient at the same two places, so the values that cross a
// layer boundary are the same whether a stage boundary is there or not: a
// message between stages carries exactly them. Weight gradients are added in
// FP32 onto the accumulator in the order of the calls of Backward.
//
// Kept from forward to backward, per layer: its input, the turned q, k, v, the
// attention's output and log-sums, the stream after attention, gate and up, and
// the norms' scales. Norm outputs and the MLP's activation are computed again:
// they cost a pass over memory, not a product. Logits live in one buffer: on
// the last stage each forward is followed by its backward.
//
// Memory: one block each for activations and scratch, sized at Create by the
// function that Plan uses; calls allocate nothing on the CPU device. Thread:
// the step thread. Works on any kernels::Device: calls enqueue on stream() and
// return, but the last stage's Forward waits for its loss.

#ifndef HOLDFAST_TRAINER_MODEL_STAGE_H_
#define HOLDFAST_TRAINER_MODEL_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/layout/train_layout.h"
#include "kernels/device.h"
#include "trainer/model/model_config.h"
#include "trainer/parallel/device_collectives.h"

namespace holdfast::trainer {

// Where one layer's tensors start, in elements from the base of the weights and
// of a gradient set.
struct LayerOffsets {
  int64_t input_norm, q, k, v, o, post_norm, gate, up, down;
};

struct StageOffsets {
  int64_t embedding = -1;  // first stage
  std::vector<LayerOffsets> layers;
  int64_t final_norm = -1;     // last stage, and the next two
  int64_t head_weight = -1;    // may be the embedding's (tied, one stage)
  int64_t head_gradient = -1;  // never the embedding's
};

struct StageOptions {
  ModelConfig model;
  ComputeType compute = ComputeType::kBf16;
  int tp = 1;
  int tp_rank = 0;
  int64_t layers = 0;  // Of this stage.
  bool first = true;
  bool last = true;
  int64_t micro_seqs = 1;
  // Microbatches whose activations are kept at once; slots are numbered from 0.
  int slots = 1;
};

// Bytes that a stage allocates, and those that its kernels take on a GPU.
struct StageMemory {
  int64_t activations = 0;
  int64_t buffers = 0;
  int64_t gpu_scratch = 0;
};

class Stage {
 public:
  static StageMemory Plan(const StageOptions& options);

  // `weights` is the base of the rank's weights in memory of `device`, in the
  // compute type; vocabulary pad rows are zero. `tp` may be null when
  // options.tp is 1. All outlive the stage.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(
      const StageOptions& options, const StageOffsets& offsets,
      const std::byte* weights, DeviceCollectives* tp, kernels::Device& device);

  virtual ~Stage() = default;

  // What was allocated. Equal to the plan.
  virtual StageMemory memory() const = 0;

  // Backward adds to this gradient set from now on.
  virtual void SetGradients(float* base) = 0;

  // The order of everything that is enqueued here. Others may add to it.
  virtual kernels::Stream& stream() = 0;

  // Messages: micro_seqs * seq_len * hidden values of T, in device memory, two
  // of each kind so that one can travel while the other is used.
  enum class Message { kInput, kOutput, kOutputGradient, kInputGradient };
  static constexpr int kMessages = 2;
  virtual std::span<std::byte> message(Message kind, int index) = 0;

  // What of a microbatch a stage needs; empty spans where it does not. Copied.
  struct Batch {
    std::span<const int32_t> tokens;   // first stage
    std::span<const int32_t> targets;  // last stage, and the next two
    std::span<const uint8_t> mask;
    float token_weight = 0.0f;  // Of one counting token in the loss.
  };

  // First stage: from batch.tokens; else from message(kInput, message). Fills
  // message(kOutput, message), or on the last stage *loss_sum: the sum of the
  // counting tokens' losses, unweighted, added in FP64 in token order.
  virtual absl::Status Forward(int slot, const Batch& batch, int message,
                               double* loss_sum) = 0;

  // Gradients of the weighted loss of the microbatch that was forwarded into
  // `slot`; on the last stage the latest one. Reads message(kOutputGradient,
  // message) except on the last stage; fills message(kInputGradient, message)
  // except on the first.
  virtual absl::Status Backward(int slot, int message) = 0;

  // Called by Backward when the gradients of a part of the stage have been
  // enqueued, in this order: part layers + 1 is the head with its norm (last
  // stage), part 1 + i is layer i, part 0 the embedding (every stage). An error
  // ends the backward. Null: not called.
  using GradientHook = std::function<absl::Status(int64_t part)>;
  virtual void SetGradientHook(GradientHook hook) = 0;

  // Called by Forward before it enqueues what reads the weights of a part, the
  // parts numbered as above: part 0 on every stage, then the layers in order,
  // then the head (last stage). Null: not called.
  using WeightsHook = std::function<void(int64_t part)>;
  virtual void SetWeightsHook(WeightsHook hook) = 0;

  // For tests: the latest logits, copied: [rows, vocab rows here], as float.
  virtual std::vector<float> Logits() = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_STAGE_H_
