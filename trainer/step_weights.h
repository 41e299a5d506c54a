// trainer/step_weights.h: weights from the owners of blocks to every rank that
// uses them: over DP, and from the first stage to a tied copy on the last.
//
// With overlap.param_gather they travel beside the stream, in buckets that
// follow one another as a forward uses them. A bucket is a range of the local
// blocks and comes from whoever owns them; it sets out when its blocks are
// final, while later ones are still updated. The next forward waits for the
// buckets of a part just before that part.
//
// Why that cannot stand still. Every rank gives all buckets and the tied copy
// of a step to its transport, in one order, before anything of the next step. A
// bucket waits only for the update of its own step and for the buckets before
// it, never for a forward; a forward waits for buckets. So what waits for what
// has no circle, whatever TP and PP send meanwhile. That a transport can carry
// both at once is its own affair (nccl_wire.h).
//
// Thread: the step thread. Allocates in the constructor and CutBuckets.

#ifndef HOLDFAST_TRAINER_STEP_WEIGHTS_H_
#define HOLDFAST_TRAINER_STEP_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/gradient_reduce.h"
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

  // Before the first step: from now on weights may travel beside the stream, in
  // buckets of about `bucket_bytes`. `parts` as from PartsOf.
  void CutBuckets(std::span<const ElementRange> parts, int64_t bucket_bytes);
  bool has_buckets() const { return !buckets_.empty(); }

  // The first `count` owned blocks are final on the stream, and nothing that is
  // on it still reads the old weights of others. Of one step: 0 first, then
  // what grows.
  void OwnedFinal(int64_t count);
  // All owned blocks are final on the stream: in place of Run. Collective.
  absl::Status GatherBeside();

  // What is enqueued on the stream afterwards finds the weights of a part
  // (Stage::WeightsHook), of all parts. Costs nothing where nothing travels.
  void WaitForPart(int64_t part);
  void WaitForAll();
  bool under_way() const { return under_way_; }
  // Passed when what is on the stream now has run and all weights have come.
  // Holds the stream up by nothing.
  kernels::Event AllEvent();

 private:
  // Byte ranges of the weight region, one for each DP member.
  struct Shares {
    std::vector<int64_t> first, count;
  };

  // Local blocks up to `end`, from where the bucket before it ends, and what
  // its gather waits for and passes.
  struct Bucket {
    int64_t end = 0;
    kernels::Event ready = kernels::Event::kPassed;
    kernels::Event done = kernels::Event::kPassed;
  };

  absl::Status GatherShares(const Shares& shares, kernels::Stream& stream);
  absl::Status CopyTied(kernels::Stream& stream);

  DeviceMesh& mesh_;
  kernels::Device& device_;
  kernels::Stream& stream_;
  const int64_t block_bytes_;
  const std::span<std::byte> weights_;  // Device memory.
  Shares owned_;
  Shares tied_;  // This rank's table or copy; empty when it takes no part.

  std::vector<Bucket> buckets_;
  std::vector<size_t> needed_;  // By part: so many buckets.
  Shares part_;                 // Of the bucket that is being begun.
  size_t ready_ = 0;            // Buckets of this step whose blocks are final.
  bool under_way_ = false;
  size_t waited_ = 0;  // Of the buckets under way, by the stream.
  std::unique_ptr<kernels::Stream> beside_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_WEIGHTS_H_
