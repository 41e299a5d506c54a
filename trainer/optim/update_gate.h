// trainer/optim/update_gate.h: who must be asked before a block is updated.
//
// The optimizer goes through the blocks that a rank owns in order, a group at a
// time, and asks before the first store to each group. A save under way answers
// when those bytes are safe (the checkpoint's fence); without one there is
// nobody to ask.
//
// Thread: the step thread.

#ifndef HOLDFAST_TRAINER_OPTIM_UPDATE_GATE_H_
#define HOLDFAST_TRAINER_OPTIM_UPDATE_GATE_H_

#include <cstdint>

namespace holdfast::trainer {

class UpdateGate {
 public:
  virtual ~UpdateGate() = default;

  // Owned blocks [first, first + count) of this rank, counted from its first
  // owned block, are about to be stored to: their weight, master and moments.
  // Returns when they may be. In one step every owned block is asked for
  // exactly once, in increasing order. Block i of the owned ones lies at byte
  // i * 8,192 of the FP32 regions and at block (first owned + i) of the weight
  // region.
  virtual void BeforeUpdate(int64_t first, int64_t count) = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_OPTIM_UPDATE_GATE_H_
