// ckpt/snapshot/copy_plan.h: in which copies a device's state comes to the
// host, and where each lands. Pure.
//
// Units of a megabyte, copied one by one, would leave the bus idle between any
// two of them. So units that lie side by side in a region are copied together,
// in the order in which the first of each is written:
//
//   writer      w0 m0 v0 m1 v1 w1 m2 v2 m3 v3 ...     units of three regions
//   copies      [w0 w1] [m0 m1] [v0 v1] [m2 m3] [v2 v3]
//
// An arena that holds everything gives each copy a place of its own. A smaller
// one is a ring of equal slots: a copy begins when a slot is free, and leaves
// it when its last unit has been written.

#ifndef HOLDFAST_CKPT_SNAPSHOT_COPY_PLAN_H_
#define HOLDFAST_CKPT_SNAPSHOT_COPY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct CopyPlan {
  // Copies as ranges of regions, in the order in which they begin.
  std::vector<SnapshotUnit> copies;
  std::vector<uint32_t> copy_of;   // by unit
  std::vector<uint32_t> units_in;  // by copy
  std::vector<uint64_t> places;    // by slot, in the arena
  uint64_t arena_bytes = 0;

  // As many slots as copies: nothing is refilled.
  bool whole() const { return places.size() == copies.size(); }
};

// `arena_bytes` 0: all of the units. The plan's arena is never larger, but for
// one unit, without which nothing can be copied. Any arena is enough to come to
// the end: the copies that units [0, i] of the writer need and whose units are
// not all among them never are more than there are slots.
CopyPlan PlanCopies(std::span<const SnapshotUnit> units, uint64_t arena_bytes);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_COPY_PLAN_H_
