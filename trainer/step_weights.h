// trainer/step_weights.h: weights from the owners of blocks to every rank that
// uses them: over DP, and from the first stage to a tied copy on the last.
//
// Thread: the step thread. Allocates in Create only.

#ifndef HOLDFAST_TRAINER_STEP_WEIGHTS_H_
#define HOLDFAST_TRAINER_STEP_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/train_state.h"

namespace holdfast::trainer {

// Each DP member's share of the tied table's blocks, counted from the table's
// first block: what it owns of them on the first stage. The head's gradients
// and the table's weights travel in these shares. Empty in untied models.
std::vector<ckpt::BlockRange> TiedShares(const ckpt::TrainLayout& layout,
                                         int tp);

class WeightExchange {
 public:
  // All outlive the result.
  WeightExchange(DeviceMesh& mesh, const TrainState& state,
                 kernels::Device& device, kernels::Stream& stream);

  // Owned blocks are final on the stream; afterwards all local blocks are.
  // Nothing is written to the owned ones: a save may be reading them.
  // Collective.
  absl::Status Run();

  // The same in parts, beside the stream: of every member's owned blocks, part
  // i of `parts`. All parts are begun in order, each when its own blocks are
  // final on the stream, and then Run is called. Collective.
  absl::Status GatherBeside(int part, int parts);
  // The owned blocks, counted from the first one, at which part i ends.
  int64_t PartEnd(int part, int parts) const;

 private:
  // Byte ranges of the weight region, one for each DP member.
  struct Shares {
    std::vector<int64_t> first, count;
  };

  absl::Status GatherShares(const Shares& shares, kernels::Stream& stream);

  DeviceMesh& mesh_;
  kernels::Device& device_;
  kernels::Stream& stream_;
  const int64_t block_bytes_;
  const std::span<std::byte> weights_;  // Device memory.
  Shares owned_;
  Shares tied_;  // This rank's table or copy; empty when it takes no part.
  Shares part_;
  bool beside_done_ = false;  // the owned blocks, in this step
  std::unique_ptr<kernels::Stream> beside_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_WEIGHTS_H_
