// trainer/step_weights.h: weights from the owners of blocks to every rank that
// uses them: over DP, and from the first stage to a tied copy on the last.
//
// Thread: the step thread. Allocates in Create only.

#ifndef HOLDFAST_TRAINER_STEP_WEIGHTS_H_
#define HOLDFAST_TRAINER_STEP_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step_mirror.h"
#include "trainer/train_state.h"

namespace holdfast::trainer {

// Each DP member's share of the tied table's blocks, counted from the table's
// first block: what it owns of them on the first stage. The head's gradients
// and the table's weights travel in these shares. Empty in untied models.
std::vector<ckpt::BlockRange> TiedShares(const ckpt::TrainLayout& layout,
                                         int tp);

class WeightExchange {
 public:
  static absl::StatusOr<WeightExchange> Create(MeshCollectives& mesh,
                                               const TrainState& state,
                                               kernels::Device& device,
                                               kernels::Stream& stream,
                                               bool staged);

  // Owned blocks are final; afterwards all local blocks are. Collective.
  absl::Status Run();

  int64_t buffer_bytes() const { return weights_.pinned_bytes(); }

 private:
  // Byte ranges of the weight region, one for each DP member.
  struct Shares {
    std::vector<int64_t> first, count;
  };

  absl::Status GatherShares(const Shares& shares);

  MeshCollectives* mesh_ = nullptr;
  Mirror weights_;
  Shares owned_;
  Shares tied_;  // This rank's table or copy; empty when it takes no part.
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_WEIGHTS_H_
