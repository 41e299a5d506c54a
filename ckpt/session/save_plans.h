// ckpt/session/save_plans.h: the plans of a job's saves, computed once.
//
// A plan depends on the layout alone, so it is the same for every save of an
// incarnation. Every rank has its own; rank 0 has all of them, computed one by
// one while its first save is being written, and compares their hashes with the
// votes.
//
// Where several ranks share a file a plan is of the rank's part of it, and the
// leader of the file plans all parts at once, to know their sizes: some 0.2 ms
// of the constructor each.
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
#include "ckpt/group/group.h"
#include "ckpt/layout/holding.h"
#include "ckpt/plan/file_names.h"
#include "ckpt/plan/file_plan.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

// `files` as in CheckpointerOptions: 0 one per rank, -1 one per host, else so
// many, or one per rank where there are fewer.
FileGroups GroupsOf(const Group& group, int64_t files);

class SavePlans {
 public:
  // `layout` outlives the plans. At most `files_per_dir` (0: any number) files
  // lie in one directory.
  SavePlans(const JobLayout* layout, Rank self, uint32_t files_per_dir = 0)
      : SavePlans(layout, self, files_per_dir,
                  FileGroups::OnePerRank(layout->world())) {}
  // `groups` are of the layout's ranks, and the same on all of them.
  SavePlans(const JobLayout* layout, Rank self, uint32_t files_per_dir,
            FileGroups groups);

  // What rank 0 keeps of a rank's plan.
  struct Summary {
    uint64_t hash = 0;  // of the plan, the items and the world: the vote's
    FilePart part;
    std::vector<Chunk> chunks;
  };

  const JobLayout& layout() const { return *layout_; }
  const FileGroups& groups() const { return groups_; }
  const FileNames& names() const { return names_; }
  const SavePlan& own() const { return own_; }
  uint64_t own_hash() const { return own_hash_; }
  // The file that this rank's bytes go into, and who makes it.
  uint32_t own_file() const { return own_file_; }
  Rank leader() const { return groups_.First(own_file_); }
  bool leads() const { return leader() == self_; }
  const FilePart& own_part() const { return own_part_; }
  struct Member {
    Rank rank{};
    uint64_t begin = 0;  // of its data
    FilePart part;
  };
  // Of the leader's file: all of them, itself first. Empty on other ranks.
  const std::vector<Member>& members() const { return members_; }
  // Of the leader: the whole file.
  const FileShape& file() const { return file_; }
  // What the vote for a plain file says: the leader's of the whole file, the
  // others' of their data.
  struct VoteSize {
    uint64_t bytes = 0;
    uint32_t unit_count = 0;
  };
  VoteSize OwnVote() const;
  // The own plan's units, as a snapshot takes them.
  std::vector<SnapshotUnit> SnapshotUnits() const;
  // Pieces [piece_first()[u], piece_first()[u + 1]) lie in unit u.
  const std::vector<uint32_t>& piece_first() const { return piece_first_; }

  // Plans one more rank; false when all are planned.
  bool PlanNext();
  bool all_planned() const { return summaries_.size() == world_; }
  const Summary& Of(Rank rank) const;  // planned already
  // All are planned.
  const FileShape& ShapeOf(uint32_t file) const;
  VoteSize VoteOf(Rank rank) const;
  // Of all plans together, in rank order. All are planned.
  uint64_t JobHash() const;
  uint64_t TotalBytes() const;

 private:
  uint64_t HashOf(const SavePlan& plan, uint32_t file) const;

  const JobLayout* layout_;
  const Rank self_;
  const size_t world_;
  const FileGroups groups_;
  const FileNames names_;
  const uint64_t items_hash_;
  SavePlan own_;
  uint64_t own_hash_ = 0;
  const uint32_t own_file_;
  const FilePart own_part_;
  std::vector<Member> members_;
  FileShape file_;
  std::vector<uint32_t> piece_first_;
  std::vector<Summary> summaries_;
  std::vector<FileShape> shapes_;  // by file, as far as it is planned
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_PLANS_H_
