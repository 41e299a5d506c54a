// trainer/step.h: one step of training over the whole mesh.
//
//   for each microbatch of this member, in one run of the 1F1B list
//     forward, backward      into the accumulator of the microbatch's leaf
//     a leaf is finished  -> joined with its finished siblings (local join)
//   tree over DP             each block's gradient ends at its owner
//   tied table               head's gradient to the first stage, added once
//   norm                     FP64 over blocks, summed exactly over all ranks
//   clip, AdamW              on owned blocks, in block order, behind a gate
//   all-gather over DP       weights; then the tied copy on the last stage
//
// With overlap.param_gather the last of these may still be under way when a
// step is over: the next forward waits for what it uses, and everything else
// that reads weights for all of them (state, StateEvent, RunEval,
// RefreshWeights, the backward).
//
// With numerics.invariant the loss, the gradient norm and every stored bit are
// the same for every DP and PP (DESIGN section 4); changing TP changes the
// order of sums. Without it microbatches are spread evenly, each member sums
// its own and the members are added in rank order.
//
// Microbatch g of a step, 0 <= g < global_seqs / micro_seqs, holds the
// sequences [g, g + 1) * micro_seqs of the global batch. Leaf g / n gets it, n
// = global_seqs / (micro_seqs * virtual_dp), whatever the mesh.
//
// Thread: every call by the step thread of its rank; every rank of the job
// makes the same calls in the same order. Memory: all of it in Create; a step
// allocates nothing.

#ifndef HOLDFAST_TRAINER_STEP_H_
#define HOLDFAST_TRAINER_STEP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/layout/train_layout.h"
#include "kernels/device.h"
#include "trainer/config.h"
#include "trainer/model/memory_plan.h"
#include "trainer/optim/update_gate.h"
#include "trainer/parallel/collectives.h"
#include "trainer/train_state.h"

namespace holdfast::trainer {

struct DeviceMesh;
struct MeshCollectives;

// One microbatch: micro_seqs * seq_len entries each, sequence after sequence.
// targets[i] is the token to predict after tokens[i]; it counts in the loss
// where mask[i] is not 0.
struct Microbatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
  std::span<const uint8_t> mask;
};

// Where a step gets its samples. Asked by ranks of the first stage (for tokens)
// and of the last (targets, mask), in increasing order of microbatch within a
// step; the TP ranks of a member ask for the same ones. The spans live until
// the next call.
class MicrobatchSource {
 public:
  virtual ~MicrobatchSource() = default;
  virtual absl::StatusOr<Microbatch> Get(int64_t microbatch) = 0;
};

struct StepOptions {
  ModelConfig model;
  OptimConfig optim;        // decay_steps filled in.
  NumericsConfig numerics;  // virtual_dp filled in.
  BatchConfig batch;
  OverlapConfig overlap;
  // All outlive the runner. `layout` is of BuildTensorTable(model, tp); its
  // weight dtype is that of numerics.compute.
  const ckpt::TrainLayout* layout = nullptr;
  MeshCollectives* mesh = nullptr;
  kernels::Device* device = nullptr;
  bool plan_for_gpu = false;  // Where a plan has no device to ask.
  const ckpt::Clock* clock = nullptr;
  // How device memory travels; null: by the host, over `mesh`.
  DeviceMesh* device_mesh = nullptr;
};

struct StepResult {
  float loss = 0.0f;       // Mean over the counting tokens of the global batch.
  uint32_t loss_bits = 0;  // Of `loss`.
  float grad_norm = 0.0f;  // Before clipping.
  double lr = 0.0;
  // Loss or norm is not finite: nothing was updated, on any rank.
  bool skipped_nonfinite = false;
  int64_t counting_tokens = 0;  // Of the global batch, as given.
  int64_t tokens = 0;           // Of the global batch, masked ones included.
  // By stage; the slowest rank of each. Waiting is for the neighbour stages.
  std::span<const float> fwd_ms, bwd_ms, wait_ms;
  // Of this rank.
  float reduce_ms = 0.0f;  // Sums over DP, tied table, norm.
  float update_ms = 0.0f;  // AdamW, its gate's waiting included.
  float gather_ms = 0.0f;  // Weights over DP and to the last stage, as far as
                           // the step waits for them.
};

struct EvalResult {
  double loss = 0.0;  // Mean over counting tokens; NaN when none counts.
  int64_t counting_tokens = 0;
};

class StepRunner {
 public:
  // kInvalidArgument names the numbers that do not fit (batch, virtual_dp, dp,
  // model and tp); kResourceExhausted: no memory. Collective.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(
      const StepOptions& options);
  virtual ~StepRunner() = default;

  // What Create will allocate on `rank` with these options; pure, so `mesh`,
  // `device` and `clock` may be null.
  static absl::StatusOr<MemoryPlan> PlanMemory(const StepOptions& options,
                                               ckpt::Rank rank);

  // What a rank's messages take of pinned memory where the host carries them
  // from device to device (HostedMesh): about that, since the pools keep pieces
  // that turned out too short. Pure, as above.
  static absl::StatusOr<int64_t> PlanPinned(const StepOptions& options,
                                            ckpt::Rank rank);

  // What Create has allocated. Equal to the plan.
  virtual MemoryPlan memory() const = 0;

  // Waits for weights that still travel.
  virtual TrainState& state() = 0;

  // Masters from `seed`, moments zero, weights everywhere. Collective.
  virtual absl::Status Initialise(uint64_t seed) = 0;

  // After owned blocks have been filled by a load: weights of the other owners
  // and the tied copy. Pads are zero from Create on. Collective.
  virtual absl::Status RefreshWeights() = 0;

  // The `step`-th update, counted from 1. `counting_tokens` is the number of
  // nonzero mask entries in the whole global batch, an integer that all ranks
  // know beforehand; 0 gives a loss of 0 and an update by momentum and decay
  // alone. `gate` may be null. Spans in the result live until the next call.
  virtual absl::StatusOr<StepResult> RunStep(int64_t step,
                                             int64_t counting_tokens,
                                             MicrobatchSource& source,
                                             UpdateGate* gate) = 0;

  // Forward only over microbatches [0, microbatches) of `source`, divided over
  // DP. The result is the same on every rank and, to the bit, for every DP and
  // PP.
  virtual absl::StatusOr<EvalResult> RunEval(int64_t microbatches,
                                             MicrobatchSource& source) = 0;

  // Passed when all that was launched and stores into the state has run,
  // weights that travel beside the next step included. For saves, whose copies
  // go behind it.
  virtual kernels::Event StateEvent() = 0;

  // Steps skipped since Create.
  virtual int64_t skipped_steps() const = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_H_
