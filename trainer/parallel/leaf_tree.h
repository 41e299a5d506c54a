// trainer/parallel/leaf_tree.h: the fixed tree over which gradients are summed,
// and who adds what when. Pure.
//
// The leaves (virtual ranks) of a run, and so the tree, never change. A tree
// over n > 1 leaves is the sum of a left tree, over the largest power of two
// below n, and a right tree over the rest:
//
//   6 leaves   ((0+1)+(2+3))+(4+5)
//
// A DP member computes a contiguous run of leaves. The largest whole subtrees
// inside its run are its pieces; it adds up each of them alone (the local
// join), and the owners of the blocks add the pieces of all members (the owner
// join). Together these are the additions of the tree, whatever the number of
// members:
//
//   DP = 2     member 0: 0 1 2 -> pieces (0+1), 2     member 1: 3 4 5 -> 3,
//   (4+5)
//              owner: ((0+1)+(2+3))+(4+5)
//
// Float addition commutes, so only the shape of the tree decides the bits.

#ifndef HOLDFAST_TRAINER_PARALLEL_LEAF_TREE_H_
#define HOLDFAST_TRAINER_PARALLEL_LEAF_TREE_H_

#include <vector>

namespace holdfast::trainer {

// Leaves [first, first + count).
struct LeafRange {
  int first = 0;
  int count = 0;
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

// The run of `member`: [floor(m V / D), floor((m + 1) V / D)), never empty.
// 1 <= members <= leaves.
LeafRange LeavesOf(int leaves, int members, int member);

// The leaves of the left subtree of a tree over `count` > 1 leaves.
int LeftLeaves(int count);

// The largest whole subtrees inside `run`, in order. They cover it.
std::vector<LeafRange> PiecesOf(int leaves, LeafRange run);

// sum[into] += sum[from]; `from` is free afterwards.
struct Join {
  int into = 0;
  int from = 0;
  friend bool operator==(const Join&, const Join&) = default;
};

// What a member does while it goes through its leaves in order. Sums live in
// slots 0 to slots - 1, each as large as the local gradient.
struct LocalJoinPlan {
  struct Leaf {
    int leaf = 0;
    int slot = 0;             // Zeroed, then takes the leaf's microbatches.
    std::vector<Join> joins;  // Once the leaf is finished, in this order.
  };
  std::vector<Leaf> leaves;
  std::vector<int> piece_slots;  // Where each of PiecesOf ends up.
  // Sums that are live at once, at most: floor(log2(k)) + 1 for k leaves that
  // are one piece. A run of several pieces keeps the finished ones as well:
  // piece i, counted from 0, needs i + floor(log2(its leaves)) + 1.
  int slots = 0;
};
LocalJoinPlan PlanLocalJoin(int leaves, LeafRange run);

// What the owner of a block does with the pieces of all members.
struct OwnerJoinPlan {
  struct Piece {
    int member = 0;
    int index = 0;  // Among the member's pieces.
    LeafRange leaves;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  std::vector<Piece> pieces;  // In order of leaves.
  // Over the pieces, in this order; the sum ends in pieces[0].
  std::vector<Join> joins;
};
OwnerJoinPlan PlanOwnerJoin(int leaves, int members);

// For numerics.invariant = false: one piece a member, added in rank order.
OwnerJoinPlan PlanRankOrderJoin(int members);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_LEAF_TREE_H_
