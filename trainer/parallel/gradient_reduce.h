// trainer/parallel/gradient_reduce.h: the reduce-scatter of gradients over DP.
//
// Every member has one or more pieces, sums over the whole local gradient; at
// the end each member has the joined sum of the blocks that it owns. Pieces
// travel as they are, a chunk at a time, and the owner adds them in the order
// of a join plan (leaf_tree.h), so the bits do not depend on the transport, the
// chunks or, with PlanOwnerJoin, the number of members.
//
// Thread: the step thread; all members of `dp` make the same calls.
// Memory: scratch for one chunk of each piece of the other members, at most
//     kScratchBytes, made by the constructor; Reduce allocates nothing.
// Cost: each member sends its pieces once, except its own blocks' part.

#ifndef HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_
#define HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/leaf_tree.h"

namespace holdfast::trainer {

// Elements [first, first + count) of the local gradient.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

class GradientReducer {
 public:
  static constexpr size_t kScratchBytes = size_t{8} << 20;
  static constexpr int64_t kChunkElementsMax = 65'536;  // 256 KiB.

  // `owned[m]` is what member m owns; ranges may be empty and do not overlap.
  // `plan` and `owned` are the same on every member. `dp` outlives this.
  GradientReducer(Collectives& dp, OwnerJoinPlan plan,
                  std::vector<ElementRange> owned,
                  int64_t chunk_elements_max = kChunkElementsMax);

  // What the constructor takes for a member of such a plan.
  static size_t ScratchBytes(const OwnerJoinPlan& plan, int member,
                             int64_t chunk_elements_max = kChunkElementsMax);

  // `pieces[i]` is this member's piece i of the plan, over the whole local
  // gradient; its part over the owned range is overwritten. `result` has the
  // owned range's count, and may be that part of any piece.
  absl::Status Reduce(std::span<const std::span<float>> pieces,
                      std::span<float> result);

 private:
  int64_t ChunkCount(int member, int64_t round) const;
  absl::Status Exchange(std::span<const std::span<float>> pieces,
                        int64_t round);
  void JoinPieces(int64_t round, std::span<float> result);

  Collectives& dp_;
  const OwnerJoinPlan plan_;
  const std::vector<ElementRange> owned_;
  const int64_t chunk_;
  int64_t rounds_ = 0;
  std::vector<float> scratch_;  // chunk_ elements a foreign piece.
  std::vector<float*> rows_;    // By piece of the plan.
  std::vector<RequestId> requests_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_GRADIENT_REDUCE_H_
