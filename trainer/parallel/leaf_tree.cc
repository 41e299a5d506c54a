// trainer/parallel/leaf_tree.cc: walks over the tree of leaves.

#include "trainer/parallel/leaf_tree.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>

#include "ckpt/base/check.h"

namespace holdfast::trainer {
namespace {

// The subtrees under `node` that lie whole inside `run`, as large as can be.
void AppendPieces(LeafRange node, LeafRange run,
                  std::vector<LeafRange>* pieces) {
  const int node_end = node.first + node.count;
  const int run_end = run.first + run.count;
  if (node_end <= run.first || node.first >= run_end) return;
  if (node.first >= run.first && node_end <= run_end) {
    pieces->push_back(node);
    return;
  }
  // A leaf is inside or outside: what is left here has two children.
  const int left = LeftLeaves(node.count);
  AppendPieces({node.first, left}, run, pieces);
  AppendPieces({node.first + left, node.count - left}, run, pieces);
}

// Adds up the subtree `node` leaf by leaf; the slot that holds its sum.
class LocalJoiner {
 public:
  explicit LocalJoiner(LocalJoinPlan* plan) : plan_(plan) {}

  int Visit(LeafRange node) {
    if (node.count == 1) {
      const int slot = Take();
      plan_->leaves.push_back({node.first, slot, {}});
      return slot;
    }
    const int left_leaves = LeftLeaves(node.count);
    const int left = Visit({node.first, left_leaves});
    const int right =
        Visit({node.first + left_leaves, node.count - left_leaves});
    // The last leaf of the right subtree completes it, and now this node.
    plan_->leaves.back().joins.push_back({left, right});
    free_.insert(right);
    return left;
  }

 private:
  int Take() {
    if (free_.empty()) free_.insert(plan_->slots++);
    const int slot = *free_.begin();
    free_.erase(free_.begin());
    return slot;
  }

  LocalJoinPlan* plan_;
  std::set<int> free_;
};

// Joins pieces [first, last) that make up `node`; the piece that holds the sum.
int AppendOwnerJoins(LeafRange node,
                     const std::vector<OwnerJoinPlan::Piece>& pieces,
                     std::vector<Join>* joins) {
  const auto found =
      std::lower_bound(pieces.begin(), pieces.end(), node.first,
                       [](const OwnerJoinPlan::Piece& piece, int leaf) {
                         return piece.leaves.first < leaf;
                       });
  HF_CHECK(found != pieces.end() && found->leaves.first == node.first,
           "no piece begins at leaf %d", node.first);
  if (found->leaves == node) return static_cast<int>(found - pieces.begin());
  const int left_leaves = LeftLeaves(node.count);
  const int left = AppendOwnerJoins({node.first, left_leaves}, pieces, joins);
  const int right = AppendOwnerJoins(
      {node.first + left_leaves, node.count - left_leaves}, pieces, joins);
  joins->push_back({left, right});
  return left;
}

}  // namespace

LeafRange LeavesOf(int leaves, int members, int member) {
  HF_CHECK(members >= 1 && members <= leaves && member >= 0 && member < members,
           "member %d of %d over %d leaves", member, members, leaves);
  const auto begin = [&](int64_t m) {
    return static_cast<int>(m * leaves / members);
  };
  return {begin(member), begin(member + 1) - begin(member)};
}

int LeftLeaves(int count) {
  HF_CHECK(count > 1, "a tree over %d leaves has no branches", count);
  return static_cast<int>(std::bit_floor(static_cast<uint32_t>(count - 1)));
}

std::vector<LeafRange> PiecesOf(int leaves, LeafRange run) {
  HF_CHECK(run.first >= 0 && run.count >= 1 && run.first + run.count <= leaves,
           "leaves %d to %d of %d", run.first, run.first + run.count, leaves);
  std::vector<LeafRange> pieces;
  AppendPieces({0, leaves}, run, &pieces);
  return pieces;
}

LocalJoinPlan PlanLocalJoin(int leaves, LeafRange run) {
  LocalJoinPlan plan;
  LocalJoiner joiner(&plan);
  for (const LeafRange& piece : PiecesOf(leaves, run)) {
    plan.piece_slots.push_back(joiner.Visit(piece));
  }
  return plan;
}

OwnerJoinPlan PlanOwnerJoin(int leaves, int members) {
  OwnerJoinPlan plan;
  for (int member = 0; member < members; ++member) {
    int index = 0;
    for (const LeafRange& piece :
         PiecesOf(leaves, LeavesOf(leaves, members, member))) {
      plan.pieces.push_back({member, index++, piece});
    }
  }
  AppendOwnerJoins({0, leaves}, plan.pieces, &plan.joins);
  return plan;
}

OwnerJoinPlan PlanRankOrderJoin(int members) {
  HF_CHECK(members >= 1, "a join over %d members", members);
  OwnerJoinPlan plan;
  for (int member = 0; member < members; ++member) {
    plan.pieces.push_back({member, 0, {member, 1}});
    if (member > 0) plan.joins.push_back({0, member});
  }
  return plan;
}

}  // namespace holdfast::trainer
