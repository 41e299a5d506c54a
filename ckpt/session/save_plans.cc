// ckpt/session/save_plans.cc: see save_plans.h.

#include "ckpt/session/save_plans.h"

#include <numeric>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"

namespace holdfast::ckpt {
namespace {

// Depends on the order of what is mixed in.
uint64_t Mix(uint64_t hash, uint64_t value) {
  return Philox64(hash, 0, value) + hash;
}

}  // namespace

SavePlans::SavePlans(const JobLayout* layout, Rank self, uint32_t files_per_dir)
    : layout_(layout),
      world_(layout->world()),
      names_(static_cast<uint32_t>(world_), files_per_dir),
      items_hash_(HashItems(layout->items())),
      own_(PlanSave(layout->items(), layout->StoredBy(self))),
      own_hash_(HashOf(own_)) {
  piece_first_.resize(own_.units.size() + 1);
  for (const DigestPiece& piece : own_.pieces) ++piece_first_[piece.unit + 1];
  std::partial_sum(piece_first_.begin(), piece_first_.end(),
                   piece_first_.begin());
}

std::vector<SnapshotUnit> SavePlans::SnapshotUnits() const {
  std::vector<SnapshotUnit> units;
  units.reserve(own_.units.size());
  for (const WriteUnit& unit : own_.units) {
    units.push_back({unit.region, unit.region_offset, unit.bytes});
  }
  return units;
}

bool SavePlans::PlanNext() {
  if (all_planned()) return false;
  const Rank rank{static_cast<int32_t>(summaries_.size())};
  SavePlan plan = PlanSave(layout_->items(), layout_->StoredBy(rank));
  Summary summary;
  summary.hash = HashOf(plan);
  summary.file_bytes = plan.file_bytes;
  summary.unit_count = plan.units.size();
  summary.chunks = std::move(plan.chunks);
  summaries_.push_back(std::move(summary));
  return true;
}

const SavePlans::Summary& SavePlans::Of(Rank rank) const {
  HF_CHECK(static_cast<size_t>(Index(rank)) < summaries_.size(),
           "rank %d is not planned yet", Index(rank));
  return summaries_[Index(rank)];
}

uint64_t SavePlans::JobHash() const {
  HF_CHECK(all_planned(), "the job is planned before it is hashed");
  uint64_t hash = Mix(items_hash_, world_);
  for (const Summary& summary : summaries_) hash = Mix(hash, summary.hash);
  return hash;
}

uint64_t SavePlans::TotalBytes() const {
  uint64_t bytes = 0;
  for (const Summary& summary : summaries_) bytes += summary.file_bytes;
  return bytes;
}

uint64_t SavePlans::HashOf(const SavePlan& plan) const {
  return Mix(Mix(items_hash_, world_), HashSavePlan(plan));
}

}  // namespace holdfast::ckpt
