// ckpt/layout/holding.h: what one rank has in memory, as the library sees it.
//
// The library knows items (a name, a kind, a dtype, a logical shape) and
// fragments: contiguous pieces of a rank's memory that hold a run of one item.
// It does not know what a weight or an optimizer is. A holding has no pointers:
// memory is named by (region, offset), so that any rank's holding can be
// computed anywhere, by anyone, and compared.

#ifndef HOLDFAST_CKPT_LAYOUT_HOLDING_H_
#define HOLDFAST_CKPT_LAYOUT_HOLDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/base/types.h"
#include "ckpt/layout/box.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::ckpt {

// One stored array of the job, whole. (name, kind) is unique.
struct ItemSpec {
  std::string name;  // the tensor's
  std::string kind;  // "weight", "master", "exp_avg", "exp_avg_sq"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  friend bool operator==(const ItemSpec&, const ItemSpec&) = default;
};

using ItemIndex = uint32_t;

// Elements [first, first + count) of the row-major order of `part`, a box of
// the item, consecutive in memory from byte `offset` of region `region`.
// `offset` is a multiple of 4,096. The bytes from the fragment's end to the
// next multiple of 4,096 are inside the region, belong to nobody and are zero.
struct Fragment {
  ItemIndex item = 0;
  Box part;
  int64_t first = 0;
  int64_t count = 0;
  uint32_t region = 0;
  uint64_t offset = 0;
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

// Regions are parallel: the byte at fraction x of one region is updated
// together with the byte at fraction x of every other (a block's weight, master
// and moments). A save walks over all regions side by side, in this order, and
// so does the optimizer; that is what keeps the save ahead
// (ckpt/snapshot/fence.h).
struct Holding {
  std::vector<uint64_t> region_bytes;
  std::vector<Fragment> fragments;
};

// All that a save or a load must know of a job, as pure data and functions.
class JobLayout {
 public:
  virtual ~JobLayout() = default;
  virtual int world() const = 0;
  // Sorted by (name, kind); the same on every rank.
  virtual const std::vector<ItemSpec>& items() const = 0;
  // What `rank` writes at a save: over all ranks every element of every item is
  // there exactly once.
  virtual Holding StoredBy(Rank rank) const = 0;
  // What `rank` wants filled at a load (replicas included); the same regions.
  virtual Holding WantedBy(Rank rank) const = 0;
  // "tp2-pp2-dp2", for people and metrics.
  virtual std::string description() const = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_LAYOUT_HOLDING_H_
