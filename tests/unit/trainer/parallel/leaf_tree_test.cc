// However many members share the leaves, the additions are those of the tree.
// Values differ by so many orders of magnitude that any other shape would show.

#include "trainer/parallel/leaf_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::ElementsAre;

float LeafValue(int leaf, int trial) {
  const uint64_t bits = ckpt::Philox64(5, static_cast<uint64_t>(trial),
                                       static_cast<uint64_t>(leaf));
  const float mantissa = 1 + static_cast<float>(bits % 8388608) / 8388608.0f;
  const int exponent = static_cast<int>((bits >> 32) % 24);
  return std::ldexp((bits >> 63) != 0 ? -mantissa : mantissa, exponent);
}

// The definition: left tree plus right tree.
float TreeSum(int first, int count, int trial) {
  if (count == 1) return LeafValue(first, trial);
  int left = 1;
  while (2 * left < count) left *= 2;
  return TreeSum(first, left, trial) +
         TreeSum(first + left, count - left, trial);
}

// What a member holds for each of its pieces after its leaves.
std::vector<float> PieceSums(const LocalJoinPlan& plan, int trial) {
  std::vector<float> slots(plan.slots, std::nanf(""));
  for (const LocalJoinPlan::Leaf& step : plan.leaves) {
    slots[step.slot] = LeafValue(step.leaf, trial);
    for (const Join& join : step.joins) {
      slots[join.into] += slots[join.from];
      slots[join.from] = std::nanf("");  // Free: must not be read again.
    }
  }
  std::vector<float> pieces;
  for (const int slot : plan.piece_slots) pieces.push_back(slots[slot]);
  return pieces;
}

TEST(LeafTreeTest, TheTreeSplitsAtTheLargestPowerOfTwoBelowItsSize) {
  EXPECT_EQ(LeftLeaves(2), 1);
  EXPECT_EQ(LeftLeaves(3), 2);
  EXPECT_EQ(LeftLeaves(4), 2);
  EXPECT_EQ(LeftLeaves(5), 4);
  EXPECT_EQ(LeftLeaves(8), 4);
  EXPECT_EQ(LeftLeaves(80), 64);
}

TEST(LeafTreeTest, TheDrawingOfTheHeader) {
  EXPECT_EQ(LeavesOf(6, 2, 0), (LeafRange{0, 3}));
  EXPECT_THAT(PiecesOf(6, {0, 3}),
              ElementsAre(LeafRange{0, 2}, LeafRange{2, 1}));
  EXPECT_THAT(PiecesOf(6, {3, 3}),
              ElementsAre(LeafRange{3, 1}, LeafRange{4, 2}));
  // Pieces: 0 = (0+1), 1 = 2, 2 = 3, 3 = (4+5).
  EXPECT_THAT(PlanOwnerJoin(6, 2).joins,
              ElementsAre(Join{1, 2}, Join{0, 1}, Join{0, 3}));
}

TEST(LeafTreeTest, AnyNumberOfMembersGivesTheBitsOfOne) {
  for (int leaves = 1; leaves <= 16; ++leaves) {
    for (int members = 1; members <= leaves; ++members) {
      const OwnerJoinPlan owner = PlanOwnerJoin(leaves, members);
      for (int trial = 0; trial < 20; ++trial) {
        SCOPED_TRACE(testing::Message() << leaves << " leaves, " << members
                                        << " members, trial " << trial);
        std::vector<float> sums;
        for (const OwnerJoinPlan::Piece& piece : owner.pieces) {
          const LocalJoinPlan local =
              PlanLocalJoin(leaves, LeavesOf(leaves, members, piece.member));
          sums.push_back(PieceSums(local, trial)[piece.index]);
        }
        for (const Join& join : owner.joins) {
          sums[join.into] += sums[join.from];
          sums[join.from] = std::nanf("");
        }
        EXPECT_EQ(std::bit_cast<uint32_t>(sums[0]),
                  std::bit_cast<uint32_t>(TreeSum(0, leaves, trial)));
      }
    }
  }
}

// The values above do tell shapes apart: adding in a row gives other bits.
TEST(LeafTreeTest, AnotherOrderWouldShow) {
  int different = 0;
  for (int trial = 0; trial < 20; ++trial) {
    float row = 0;
    for (int leaf = 0; leaf < 8; ++leaf) row += LeafValue(leaf, trial);
    different += row != TreeSum(0, 8, trial);
  }
  EXPECT_GE(different, 5);
}

TEST(LeafTreeTest, RunsCoverTheLeavesAndDifferByOneAtMost) {
  for (int leaves = 1; leaves <= 40; ++leaves) {
    for (int members = 1; members <= leaves; ++members) {
      int next = 0;
      for (int member = 0; member < members; ++member) {
        const LeafRange run = LeavesOf(leaves, members, member);
        EXPECT_EQ(run.first, next);
        EXPECT_GE(run.count, leaves / members);
        EXPECT_LE(run.count, leaves / members + 1);
        next += run.count;
      }
      EXPECT_EQ(next, leaves);
    }
  }
}

int Log2(int value) { return std::bit_width(static_cast<uint32_t>(value)) - 1; }

TEST(LeafTreeTest, LiveSumsStayWithinTheStatedBound) {
  for (int leaves = 1; leaves <= 64; ++leaves) {
    for (int members = 1; members <= leaves; ++members) {
      for (int member = 0; member < members; ++member) {
        SCOPED_TRACE(testing::Message() << "member " << member << " of "
                                        << members << ", " << leaves);
        const LeafRange run = LeavesOf(leaves, members, member);
        const auto pieces = PiecesOf(leaves, run);
        const LocalJoinPlan plan = PlanLocalJoin(leaves, run);
        int bound = 0;
        for (size_t i = 0; i < pieces.size(); ++i) {
          bound =
              std::max(bound, static_cast<int>(i) + 1 + Log2(pieces[i].count));
        }
        ASSERT_EQ(plan.slots, bound);
        if (pieces.size() == 1) {
          EXPECT_LE(plan.slots, Log2(run.count) + 1);
        }
        EXPECT_EQ(plan.leaves.size(), static_cast<size_t>(run.count));
      }
    }
  }
  EXPECT_EQ(PlanLocalJoin(8, {0, 8}).slots, 4);
  EXPECT_EQ(PlanLocalJoin(8, {0, 4}).slots, 3);
  EXPECT_EQ(PlanLocalJoin(8, {3, 1}).slots, 1);
}

TEST(LeafTreeTest, PiecesAreWholeSubtreesAndFewPerMember) {
  // One leaf a member: every leaf is a piece. One member: the whole tree.
  EXPECT_EQ(PlanOwnerJoin(16, 16).pieces.size(), 16u);
  EXPECT_EQ(PlanOwnerJoin(16, 1).pieces.size(), 1u);
  EXPECT_EQ(PlanOwnerJoin(16, 4).pieces.size(), 4u);
  EXPECT_THAT(PiecesOf(8, {1, 7}),
              ElementsAre(LeafRange{1, 1}, LeafRange{2, 2}, LeafRange{4, 4}));
}

TEST(LeafTreeTest, TheRankOrderJoinAddsOnePieceAMemberInARow) {
  const OwnerJoinPlan plan = PlanRankOrderJoin(3);
  ASSERT_EQ(plan.pieces.size(), 3u);
  EXPECT_EQ(plan.pieces[2].member, 2);
  EXPECT_EQ(plan.pieces[2].index, 0);
  EXPECT_THAT(plan.joins, ElementsAre(Join{0, 1}, Join{0, 2}));
}

}  // namespace
}  // namespace holdfast::trainer
