// trainer/parallel/gradient_reduce.h: the reduce-scatter of gradients over DP.
//
// Every member has one or more pieces, sums over the whole local gradient; at
// the end each member has the joined sum of the blocks that it owns. Pieces
// travel as they are, a chunk at a time, and the owner adds them in the order
// of a join plan (leaf_tree.h), so the bits do not depend on the transport, the
// device, the chunks or, with PlanOwnerJoin, the number of members.
//
// Thread: the step thread; all members of `dp` make the same calls.
// Memory: scratch for one chunk of each piece of the other members, at most
//     ReduceLimits::scratch_bytes, made by Create; Reduce allocates nothing.
// Cost: each member sends its pieces once, except its own blocks' part.

#ifndef HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_
#define HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "trainer/parallel/device_collectives.h"
#include "trainer/parallel/leaf_tree.h"

namespace holdfast::trainer {

// Elements [first, first + count) of the local gradient.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Sizes of an exchange. All members have the same.
struct ReduceLimits {
  size_t scratch_bytes = size_t{8} << 20;
  int64_t chunk_elements = 65'536;  // 256 KiB: what a second cache holds.

  // Launches and messages cost a GPU more than a processor: larger chunks.
  static ReduceLimits For(const kernels::Stream& stream) {
    return stream.immediate() ? ReduceLimits{} : OnGpu();
  }
  static ReduceLimits OnGpu() {
    return {.scratch_bytes = size_t{64} << 20, .chunk_elements = 4'194'304};
  }
};

class GradientReducer {
 public:
  // `owned[m]` is what member m owns; ranges may be empty and do not overlap.
  // `plan` and `owned` are the same on every member. `dp` and `device` outlive
  // the result. kResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      DeviceCollectives& dp, OwnerJoinPlan plan,
      std::vector<ElementRange> owned, kernels::Device& device,
      const ReduceLimits& limits);

  // Bytes of device memory that Create takes for a member of such a plan.
  static size_t ScratchBytes(const OwnerJoinPlan& plan,
                             std::span<const ElementRange> owned, int member,
                             const ReduceLimits& limits);

  // `pieces[i]` is this member's piece i of the plan, over the whole local
  // gradient, in device memory; its part over the owned range is overwritten.
  // `result` has the owned range's count, and may be that part of any piece.
  // Enqueued on `stream` as DeviceCollectives says.
  absl::Status Reduce(std::span<const std::span<float>> pieces,
                      std::span<float> result, kernels::Stream& stream) {
    return ReduceWithin(kEverything, pieces, result, stream);
  }

  // The same for what lies within `bucket` of the local gradient, the rest of
  // the result untouched. Buckets that cover it make a Reduce, bit for bit.
  absl::Status ReduceWithin(const ElementRange& bucket,
                            std::span<const std::span<float>> pieces,
                            std::span<float> result, kernels::Stream& stream);

 private:
  GradientReducer(DeviceCollectives& dp, OwnerJoinPlan plan,
                  std::vector<ElementRange> owned, kernels::Device& device,
                  int64_t chunk);

  static constexpr ElementRange kEverything = {0, int64_t{1} << 62};

  // Chunk `round` of what `member` owns within the bucket under way.
  ElementRange ChunkOf(int member, int64_t round) const;
  absl::Status Exchange(std::span<const std::span<float>> pieces, int64_t round,
                        kernels::Stream& stream);
  void JoinPieces(int64_t round, std::span<float> result,
                  kernels::Stream& stream);

  DeviceCollectives& dp_;
  const OwnerJoinPlan plan_;
  const std::vector<ElementRange> owned_;
  kernels::Device& device_;
  const int64_t chunk_;
  ElementRange bucket_ = kEverything;
  kernels::OwnedBuffer scratch_;  // chunk_ elements a foreign piece.
  std::vector<float*> rows_;      // By piece of the plan.
  std::vector<DeviceCollectives::Transfer> transfers_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_
