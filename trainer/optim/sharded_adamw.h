// trainer/optim/sharded_adamw.h: the update of the blocks that one rank owns.
//
// Blocks go in increasing order, in groups of at most kGroupBlocks of one
// tensor; the gate is asked before each group. The arithmetic of an element
// does not depend on its group or its owner (kernels/adamw.h).
//
// Thread: the step thread; the kernel uses OpenMP. Allocates nothing.

#ifndef HOLDFAST_TRAINER_OPTIM_SHARDED_ADAMW_H_
#define HOLDFAST_TRAINER_OPTIM_SHARDED_ADAMW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/layout/train_layout.h"
#include "kernels/stream.h"
#include "trainer/model/model_config.h"
#include "trainer/optim/optim_config.h"
#include "trainer/optim/update_gate.h"

namespace holdfast::trainer {

// Owned blocks of one tensor, counted from the rank's first owned block.
struct OwnedRun {
  int64_t first = 0;
  int64_t count = 0;
  bool decayed = false;
  // Not for the gradient norm: another TP rank has the same values.
  bool replica = false;

  friend bool operator==(const OwnedRun&, const OwnedRun&) = default;
};

// In block order; together they are the owned blocks of the rank at `at`.
std::vector<OwnedRun> OwnedRuns(const ckpt::TrainLayout& layout,
                                const ckpt::Coordinates& at);

// First owned element of each array.
struct OwnedMemory {
  void* weight = nullptr;  // BF16 or FP32, by `compute`
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const float* gradient = nullptr;
};

class ShardedAdamW {
 public:
  // 1 MiB of FP32: large enough for the kernel's threads, small beside what the
  // gate has to wait for.
  static constexpr int64_t kGroupBlocks = 128;

  // `runs` as from OwnedRuns.
  ShardedAdamW(const OptimConfig& optim, ComputeType compute,
               std::vector<OwnedRun> runs);

  // The `step`-th update, counted from 1, at rate `lr`, with every gradient
  // multiplied by `scale`. `gate` may be null.
  void Update(kernels::Stream& stream, const OwnedMemory& memory, int64_t step,
              double lr, float scale, UpdateGate* gate) const;

  const std::vector<OwnedRun>& runs() const { return runs_; }

 private:
  template <typename T>
  void UpdateAs(kernels::Stream& stream, const OwnedMemory& memory,
                int64_t step, double lr, float scale, UpdateGate* gate) const;

  const OptimConfig optim_;
  const ComputeType compute_;
  const std::vector<OwnedRun> runs_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_OPTIM_SHARDED_ADAMW_H_
