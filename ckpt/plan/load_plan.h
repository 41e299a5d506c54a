// ckpt/plan/load_plan.h: which stored bytes a rank reads, and where they land.
//
// Pure arithmetic over a manifest and a wanted holding. Any stored layout meets
// any wanted one:
//
//   stored by 2 ranks    |  file 0: rows 0-3  |  file 1: rows 4-7  |
//   wanted by 3 ranks    |  rows 0-2  |  rows 3-5  |  rows 6-7     |
//   plan for rank 1      { file 0: row 3 }  { file 1: rows 4-5 }

#ifndef HOLDFAST_CKPT_PLAN_LOAD_PLAN_H_
#define HOLDFAST_CKPT_PLAN_LOAD_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// `rows` pieces of `row_bytes` each: the piece r starts at byte
// file_offset + r * file_stride of the file and lands at byte
// region_offset + r * region_stride of the region. rows = 1 for contiguous
// copies.
struct ReadStep {
  uint32_t file = 0;
  uint64_t file_offset = 0;
  uint64_t file_stride = 0;
  uint32_t region = 0;
  uint64_t region_offset = 0;
  uint64_t region_stride = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  friend bool operator==(const ReadStep&, const ReadStep&) = default;
};

// Sorted by (file, file_offset).
struct LoadPlan {
  std::vector<ReadStep> steps;
  uint64_t bytes_wanted = 0;
};

// Every wanted element is covered by exactly one stored run (checked).
//
// kFailedPrecondition: a wanted item is missing from the manifest, or its dtype
//     or shape differs; names the first such item and both sides.
// kDataLoss: the manifest does not cover a wanted element.
//
// `wanted_items` are the job's; they are matched to the manifest's by (name,
// kind). Manifest items that nobody wants are not an error here: the session
// compares the two lists once for the job.
absl::StatusOr<LoadPlan> PlanLoad(const Manifest& saved,
                                  const std::vector<ItemSpec>& wanted_items,
                                  const Holding& wanted);

// The same, one fragment after the other, for whoever plans for many ranks
// (share_plan.h). Cost: Create sorts the chunks of the items that are used.
class LoadPlanner {
 public:
  // `is_used[i]`: fragments of wanted_items[i] may be asked about. All three
  // outlive the planner. Errors: kFailedPrecondition, as PlanLoad.
  static absl::StatusOr<LoadPlanner> Create(
      const Manifest& saved, const std::vector<ItemSpec>& wanted_items,
      const std::vector<bool>& is_used);
  LoadPlanner(LoadPlanner&&) noexcept;
  ~LoadPlanner();

  // Appends the steps that fill `fragment`, neither sorted nor joined.
  // kDataLoss, as PlanLoad.
  absl::Status Append(const Fragment& fragment,
                      std::vector<ReadStep>* steps) const;

  // The manifest's number of a wanted item.
  ItemIndex SavedItem(ItemIndex wanted) const;

 private:
  struct Data;
  explicit LoadPlanner(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

// Sorts, and joins contiguous copies that touch on both sides.
void SortAndJoin(std::vector<ReadStep>* steps);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_LOAD_PLAN_H_
