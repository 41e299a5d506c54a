// ckpt/session/save_plans.cc: see save_plans.h.

#include "ckpt/session/save_plans.h"

#include <algorithm>
#include <numeric>
#include <string>
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

FileGroups GroupsOf(const Group& group, int64_t files) {
  if (files == 0) return FileGroups::OnePerRank(group.size());
  if (files > 0) {
    return FileGroups::Equal(
        group.size(), static_cast<int>(std::min<int64_t>(files, group.size())));
  }
  std::vector<std::string> hosts;
  for (int rank = 0; rank < group.size(); ++rank) {
    hosts.push_back(group.HostOf(Rank{rank}));
  }
  return FileGroups::OnePerHost(hosts);
}

SavePlans::SavePlans(const JobLayout* layout, Rank self, uint32_t files_per_dir,
                     FileGroups groups)
    : layout_(layout),
      self_(self),
      world_(layout->world()),
      groups_(std::move(groups)),
      names_(groups_.count(), files_per_dir),
      items_hash_(HashItems(layout->items())),
      own_(PlanSave(layout->items(), layout->StoredBy(self))),
      own_file_(groups_.FileOf(self)),
      own_part_(PartOf(own_)) {
  HF_CHECK(static_cast<size_t>(groups_.world()) == world_,
           "files of %d ranks for a layout of %d", groups_.world(), world_);
  if (leads()) {
    for (int rank = Index(self); rank < Index(groups_.End(own_file_)); ++rank) {
      const FilePart part =
          rank == Index(self)
              ? own_part_
              : PartOf(PlanSave(layout->items(), layout->StoredBy(Rank{rank})));
      members_.push_back({Rank{rank}, file_.Append(part), part});
    }
  } else {
    uint64_t begin = kShardBlockBytes;
    for (int rank = Index(leader()); rank < Index(self); ++rank) {
      begin += DataAreaBytes(layout->items(), layout->StoredBy(Rank{rank}));
    }
    MovePlan(begin, &own_);
  }
  own_hash_ = HashOf(own_, own_file_);
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
  const uint32_t file = groups_.FileOf(rank);
  shapes_.resize(file + 1);
  Summary summary;
  summary.part = PartOf(plan);
  MovePlan(shapes_[file].Append(summary.part), &plan);
  summary.hash = HashOf(plan, file);
  summary.chunks = std::move(plan.chunks);
  summaries_.push_back(std::move(summary));
  return true;
}

const SavePlans::Summary& SavePlans::Of(Rank rank) const {
  HF_CHECK(static_cast<size_t>(Index(rank)) < summaries_.size(),
           "rank %d is not planned yet", Index(rank));
  return summaries_[Index(rank)];
}

const FileShape& SavePlans::ShapeOf(uint32_t file) const {
  HF_CHECK(all_planned(), "file %d is not planned yet", file);
  return shapes_[file];
}

SavePlans::VoteSize SavePlans::VoteOf(Rank rank) const {
  const uint32_t file = groups_.FileOf(rank);
  if (groups_.First(file) == rank) {
    return {ShapeOf(file).file_bytes(), ShapeOf(file).unit_count};
  }
  return {Of(rank).part.data_bytes, Of(rank).part.unit_count};
}

SavePlans::VoteSize SavePlans::OwnVote() const {
  if (leads()) return {file_.file_bytes(), file_.unit_count};
  return {own_part_.data_bytes, own_part_.unit_count};
}

uint64_t SavePlans::JobHash() const {
  HF_CHECK(all_planned(), "the job is planned before it is hashed");
  uint64_t hash = Mix(items_hash_, world_);
  for (const Summary& summary : summaries_) hash = Mix(hash, summary.hash);
  return hash;
}

uint64_t SavePlans::TotalBytes() const {
  uint64_t bytes = 0;
  for (const FileShape& shape : shapes_) bytes += shape.file_bytes();
  return bytes;
}

// Ranks that share a file depend on who else does: the leader's plan alone
// would not tell where the file ends.
uint64_t SavePlans::HashOf(const SavePlan& plan, uint32_t file) const {
  const uint64_t hash = Mix(Mix(items_hash_, world_), HashSavePlan(plan));
  if (!groups_.shared()) return hash;
  return Mix(Mix(hash, groups_.count()),
             uint64_t{static_cast<uint32_t>(Index(groups_.First(file)))} << 32 |
                 static_cast<uint32_t>(Index(groups_.End(file))));
}

}  // namespace holdfast::ckpt
