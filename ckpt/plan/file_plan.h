// ckpt/plan/file_plan.h: which ranks' bytes lie in which file of a checkpoint,
// and where in it.
//
// Pure arithmetic, the same on every rank. A file is of consecutive ranks; the
// lowest is its leader and makes it. With one rank it is what save_plan.h
// plans; with several, their data areas lie one after the other, in the order
// of the ranks, before one index and one footer:
//
//   header | data of rank 4 | of rank 5 | of rank 6 | index of all | footer
//
// A data area is whole blocks of 4,096 bytes, so one begins where the one
// before ends, and a rank's plan is moved there (MovePlan).

#ifndef HOLDFAST_CKPT_PLAN_FILE_PLAN_H_
#define HOLDFAST_CKPT_PLAN_FILE_PLAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/types.h"
#include "ckpt/plan/save_plan.h"

namespace holdfast::ckpt {

class FileGroups {
 public:
  static FileGroups OnePerRank(int world);
  // `files` of them (from 1 to `world`), as equal as they can be.
  static FileGroups Equal(int world, int files);
  // One for each run of ranks on one host. `hosts` by rank, not empty, and the
  // same on every rank.
  static FileGroups OnePerHost(std::span<const std::string> hosts);

  int world() const { return first_.back(); }
  uint32_t count() const { return static_cast<uint32_t>(first_.size() - 1); }
  bool shared() const { return count() < static_cast<uint32_t>(world()); }

  uint32_t FileOf(Rank rank) const;
  // The leader, and one past the last member.
  Rank First(uint32_t file) const { return Rank{first_[file]}; }
  Rank End(uint32_t file) const { return Rank{first_[file + 1]}; }

 private:
  explicit FileGroups(std::vector<int32_t> first) : first_(std::move(first)) {}

  std::vector<int32_t> first_;  // by file, ascending; and the world
};

// What a rank brings into its file.
struct FilePart {
  uint64_t data_bytes = 0;  // a multiple of 4096
  uint32_t unit_count = 0;
  friend bool operator==(const FilePart&, const FilePart&) = default;
};
FilePart PartOf(const SavePlan& plan);  // before it is moved
// The data bytes alone, without a plan.
uint64_t DataAreaBytes(const std::vector<ItemSpec>& items,
                       const Holding& stored);

// A file of several parts.
struct FileShape {
  uint64_t index_offset = kShardBlockBytes;  // where the data end
  uint32_t unit_count = 0;

  // Where the part begins.
  uint64_t Append(const FilePart& part);
  uint64_t file_bytes() const {
    return index_offset + ShardIndexBytes(unit_count) + kShardBlockBytes;
  }
  friend bool operator==(const FileShape&, const FileShape&) = default;
};

// The plan of a rank whose data begin at `begin`. Its index_offset is then
// where they end.
void MovePlan(uint64_t begin, SavePlan* plan);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_FILE_PLAN_H_
