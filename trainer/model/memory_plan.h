// trainer/model/memory_plan.h: the bytes that one rank holds, by what they are
// for. A struct that plans and measurements share.

#ifndef HOLDFAST_TRAINER_MODEL_MEMORY_PLAN_H_
#define HOLDFAST_TRAINER_MODEL_MEMORY_PLAN_H_

#include <cstdint>

namespace holdfast::trainer {

struct MemoryPlan {
  int64_t weights = 0;      // Of all local blocks, in the compute type.
  int64_t gradients = 0;    // FP32, one for each local block (and tied head).
  int64_t optimizer = 0;    // Master and moments of owned blocks.
  int64_t live_sums = 0;    // Finished subtrees of leaves that wait for others.
  int64_t activations = 0;  // Kept from a forward to its backward.
  int64_t buffers = 0;      // Scratch, messages, logits, tables.
  // What the model's kernels take besides where they run on a GPU; not in the
  // total.
  int64_t gpu_scratch = 0;
  // Between GPUs: scratch of sums and NCCL's buffers, these an estimate. Not of
  // the step's own memory (StepRunner), and 0 on a processor.
  int64_t communication = 0;

  int64_t total() const {
    return weights + gradients + optimizer + live_sums + activations + buffers +
           communication;
  }
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_MEMORY_PLAN_H_
