// ckpt/session/save_plans.h: the plans of a job's saves, computed once.
//
// A plan depends on the layout alone, so it is the same for every save of an
// incarnation. Every rank has its own; rank 0 has all of them, computed one by
// one while its first save is being written, and compares their hashes with the
// votes.
//
// Thread: the ckpt thread (the constructor: any). Memory: the own plan, about
// 150 bytes per MiB of state; on rank 0 the chunks of all, which the manifest
// holds anyway.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_PLANS_H_
#define HOLDFAST_CKPT_SESSION_SAVE_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/base/types.h"
#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"
#include "ckpt/plan/file_names.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

class SavePlans {
 public:
  // `layout` outlives the plans. At most `files_per_dir` (0: any number) files
  // lie in one directory.
  SavePlans(const JobLayout* layout, Rank self, uint32_t files_per_dir = 0);

  // What rank 0 keeps of a rank's plan.
  struct Summary {
    uint64_t hash = 0;  // of the plan, the items and the world: the vote's
    uint64_t file_bytes = 0;
    uint32_t unit_count = 0;
    std::vector<Chunk> chunks;
  };

  const JobLayout& layout() const { return *layout_; }
  const FileNames& names() const { return names_; }
  const SavePlan& own() const { return own_; }
  uint64_t own_hash() const { return own_hash_; }
  // The own plan's units, as a snapshot takes them.
  std::vector<SnapshotUnit> SnapshotUnits() const;
  // Pieces [piece_first()[u], piece_first()[u + 1]) lie in unit u.
  const std::vector<uint32_t>& piece_first() const { return piece_first_; }

  // Plans one more rank; false when all are planned.
  bool PlanNext();
  bool all_planned() const { return summaries_.size() == world_; }
  const Summary& Of(Rank rank) const;  // planned already
  // Of all plans together, in rank order. All are planned.
  uint64_t JobHash() const;
  uint64_t TotalBytes() const;

 private:
  uint64_t HashOf(const SavePlan& plan) const;

  const JobLayout* layout_;
  const size_t world_;
  const FileNames names_;
  const uint64_t items_hash_;
  SavePlan own_;
  uint64_t own_hash_ = 0;
  std::vector<uint32_t> piece_first_;
  std::vector<Summary> summaries_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_PLANS_H_
