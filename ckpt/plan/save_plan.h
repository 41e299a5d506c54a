// ckpt/plan/save_plan.h: which bytes of a rank's memory go where in its file.
//
// Pure arithmetic: no files, no device, no clock. Equal inputs give equal plans
// on every rank; rank 0 plans for all and writes the manifest from that, so no
// rank's chunk table travels, only the hash of the plan.
//
// Offsets are those of a file of the rank's own; file_plan.h moves them. Each
// region's stored fragments lie together, in memory order; the units are
// written side by side over the regions, in the order of the optimizer's walk:
//
//   file    | header | weight ........ | master ........ | exp_avg ... | ...
//   written     -      1   5   9         2   6   10        3   7   11

#ifndef HOLDFAST_CKPT_PLAN_SAVE_PLAN_H_
#define HOLDFAST_CKPT_PLAN_SAVE_PLAN_H_

#include <cstdint>
#include <vector>

#include "ckpt/base/types.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// A piece of memory that is written, checksummed and released as one: at most
// kUnitBytesMax, a multiple of 4096, contiguous in memory and in the file.
struct WriteUnit {
  uint32_t region = 0;
  uint64_t region_offset = 0;
  uint64_t file_offset = 0;
  uint32_t bytes = 0;
  friend bool operator==(const WriteUnit&, const WriteUnit&) = default;
};

// A run of one item inside a unit, for the logical digest.
struct DigestPiece {
  uint32_t unit = 0;         // index into `units`
  uint32_t unit_offset = 0;  // bytes
  ItemIndex item = 0;
  Box part;
  int64_t first = 0;
  int64_t count = 0;
};

struct SavePlan {
  std::vector<WriteUnit> units;     // in the order of writing
  std::vector<DigestPiece> pieces;  // by unit
  std::vector<Chunk> chunks;        // by file offset, for the manifest
  uint64_t index_offset = 0;        // file offset where the index starts
  uint64_t file_bytes = 0;          // all of it, footer included
  uint64_t data_bytes = 0;          // plain bytes of the items
};

// `items` must outlive nothing: the plan copies what it needs.
SavePlan PlanSave(const std::vector<ItemSpec>& items, const Holding& stored);

// Over all ranks: the hash that travels with a vote. Depends on every number of
// every plan, on the items and on the world size.
uint64_t HashSavePlan(const SavePlan& plan);
uint64_t HashItems(const std::vector<ItemSpec>& items);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_SAVE_PLAN_H_
