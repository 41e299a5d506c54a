// Every owner must end with the tree's sum of its blocks, to the bit, for every
// number of members, whatever the chunks.

#include "trainer/parallel/gradient_reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

constexpr int64_t kElements = 1000;

float LeafGradient(int leaf, int64_t element) {
  const uint64_t bits = ckpt::Philox64(8, static_cast<uint64_t>(leaf),
                                       static_cast<uint64_t>(element));
  const float mantissa = 1 + static_cast<float>(bits % 8388608) / 8388608.0f;
  const int exponent = static_cast<int>((bits >> 32) % 20);
  return std::ldexp((bits >> 63) != 0 ? -mantissa : mantissa, exponent);
}

float TreeSum(LeafRange node, int64_t element) {
  if (node.count == 1) return LeafGradient(node.first, element);
  const int left = LeftLeaves(node.count);
  return TreeSum({node.first, left}, element) +
         TreeSum({node.first + left, node.count - left}, element);
}

// Uneven on purpose: member 1 owns nothing when there are more than two.
std::vector<ElementRange> Owners(int members) {
  std::vector<ElementRange> owned;
  int64_t next = 0;
  for (int m = 0; m < members; ++m) {
    int64_t count = m == members - 1 ? kElements - next : kElements / members;
    if (m == 1 && members > 2) count = 0;
    owned.push_back({next, count});
    next += count;
  }
  return owned;
}

// The pieces of a member, each leaf gradient added as the tree says.
std::vector<std::vector<float>> PiecesOfMember(int leaves, LeafRange run) {
  std::vector<std::vector<float>> pieces;
  for (const LeafRange& piece : PiecesOf(leaves, run)) {
    std::vector<float>& values = pieces.emplace_back(kElements);
    for (int64_t e = 0; e < kElements; ++e) values[e] = TreeSum(piece, e);
  }
  return pieces;
}

// On the processor, over `dp`.
absl::Status ReduceHere(Collectives& dp, const OwnerJoinPlan& plan,
                        const std::vector<ElementRange>& owned,
                        const ReduceLimits& limits,
                        std::span<const std::span<float>> pieces,
                        std::span<float> result) {
  const auto device = kernels::NewCpuDevice();
  const auto collectives = NewHostedCollectives(dp, *device);
  auto reducer =
      GradientReducer::Create(*collectives, plan, owned, *device, limits);
  if (!reducer.ok()) return reducer.status();
  return (*reducer)->Reduce(pieces, result, kernels::CpuStream());
}

absl::Status ReduceOn(int leaves, int members, int64_t chunk, bool in_place) {
  const OwnerJoinPlan plan = PlanOwnerJoin(leaves, members);
  const std::vector<ElementRange> owned = Owners(members);
  return RunInprocRanks(members, [&](Collectives& dp) {
    auto pieces = PiecesOfMember(leaves, LeavesOf(leaves, members, dp.rank()));
    std::vector<std::span<float>> spans(pieces.begin(), pieces.end());
    const ElementRange mine = owned[dp.rank()];
    std::vector<float> apart(mine.count, std::nanf(""));
    const std::span<float> result =
        in_place ? spans[0].subspan(mine.first, mine.count)
                 : std::span<float>(apart);
    absl::Status status =
        ReduceHere(dp, plan, owned, {.chunk_elements = chunk}, spans, result);
    for (int64_t e = 0; status.ok() && e < mine.count; ++e) {
      EXPECT_EQ(std::bit_cast<uint32_t>(result[e]),
                std::bit_cast<uint32_t>(TreeSum({0, leaves}, mine.first + e)))
          << leaves << " leaves, member " << dp.rank() << " of " << members;
    }
    return status;
  });
}

TEST(GradientReducerTest, EveryNumberOfMembersGivesTheBitsOfTheTree) {
  for (const int leaves : {1, 2, 3, 6, 8}) {
    for (int members = 1; members <= leaves; ++members) {
      EXPECT_TRUE(ReduceOn(leaves, members, 65'536, false).ok());
    }
  }
}

TEST(GradientReducerTest, ChunksAndPlaceOfTheResultDoNotMatter) {
  for (const int64_t chunk : {1, 7, 300, 1000}) {
    EXPECT_TRUE(ReduceOn(6, 4, chunk, false).ok()) << chunk;
    EXPECT_TRUE(ReduceOn(6, 3, chunk, true).ok()) << chunk;
  }
}

TEST(GradientReducerTest, TheRankOrderJoinAddsMembersInARow) {
  constexpr int kMembers = 3;
  const std::vector<ElementRange> owned = Owners(kMembers);
  const absl::Status status = RunInprocRanks(kMembers, [&](Collectives& dp) {
    std::vector<float> sum(kElements);
    for (int64_t e = 0; e < kElements; ++e) sum[e] = LeafGradient(dp.rank(), e);
    const std::span<float> piece(sum);
    const ElementRange mine = owned[dp.rank()];
    std::vector<float> result(mine.count);
    absl::Status reduced = ReduceHere(dp, PlanRankOrderJoin(kMembers), owned,
                                      {}, {&piece, 1}, result);
    for (int64_t e = 0; e < mine.count; ++e) {
      const int64_t at = mine.first + e;
      EXPECT_EQ(result[e], LeafGradient(0, at) + LeafGradient(1, at) +
                               LeafGradient(2, at));
    }
    return reduced;
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(GradientReducerTest, ScratchIsBoundedHoweverManyPieces) {
  const ReduceLimits limits;
  for (const int members : {2, 80, 1000}) {
    const std::vector<ElementRange> owned(members, {0, 1 << 30});
    const OwnerJoinPlan plan = PlanOwnerJoin(1000, members);
    EXPECT_LE(GradientReducer::ScratchBytes(plan, owned, 0, limits),
              limits.scratch_bytes);
  }
  // Two members, one piece each: one chunk, and no more than there is.
  const OwnerJoinPlan two = PlanOwnerJoin(2, 2);
  const std::vector<ElementRange> large(2, {0, 1 << 30});
  EXPECT_EQ(GradientReducer::ScratchBytes(two, large, 0, limits),
            4u * limits.chunk_elements);
  const std::vector<ElementRange> small = {{0, 5}, {5, 7}};
  EXPECT_EQ(GradientReducer::ScratchBytes(two, small, 0, limits), 4u * 7);
}

TEST(GradientReducerTest, AMemberThatGivesUpFreesTheOthers) {
  const absl::Status status = RunInprocRanks(3, [&](Collectives& dp) {
    if (dp.rank() == 2) return absl::UnavailableError("lost");
    std::vector<float> sum(kElements, 1);
    const std::span<float> piece(sum);
    std::vector<float> result(Owners(3)[dp.rank()].count);
    const absl::Status reduced = ReduceHere(dp, PlanRankOrderJoin(3), Owners(3),
                                            {}, {&piece, 1}, result);
    EXPECT_TRUE(absl::IsAborted(reduced)) << reduced;
    return reduced;
  });
  EXPECT_EQ(status, absl::UnavailableError("lost"));
}

}  // namespace
}  // namespace holdfast::trainer
