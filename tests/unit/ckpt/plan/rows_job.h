// tests/unit/ckpt/plan/rows_job.h: jobs that store and want one tensor of
// rows, cut evenly over the ranks: by rows or by columns.

#ifndef HOLDFAST_TESTS_UNIT_CKPT_PLAN_ROWS_JOB_H_
#define HOLDFAST_TESTS_UNIT_CKPT_PLAN_ROWS_JOB_H_

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

enum class Cut { kElements, kRows, kColumns };

// One f32 item on `ranks` ranks, each with one region. kElements: runs of the
// whole tensor, wherever they end. kRows, kColumns: boxes.
class RowsJob final : public JobLayout {
 public:
  RowsJob(int ranks, Cut cut, std::vector<int64_t> shape,
          std::string name = "wte", DType dtype = DType::kF32)
      : ranks_(ranks),
        cut_(cut),
        items_{{.name = std::move(name),
                .kind = "weight",
                .dtype = dtype,
                .shape = std::move(shape)}} {}

  int world() const override { return ranks_; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override { return WantedBy(rank); }
  Holding WantedBy(Rank rank) const override {
    const int r = Index(rank);
    const Box whole = WholeBox(items_[0].shape);
    Fragment f{.item = 0, .part = whole, .first = 0, .count = 0};
    const auto share = [&](int64_t length) {
      const int64_t first = length * r / ranks_;
      return std::pair(first, length * (r + 1) / ranks_ - first);
    };
    if (cut_ == Cut::kElements) {
      std::tie(f.first, f.count) = share(whole.elements());
    } else {
      const int d = cut_ == Cut::kRows ? 0 : whole.dimensions - 1;
      std::tie(f.part.first[d], f.part.count[d]) = share(whole.count[d]);
      f.count = f.part.elements();
    }
    const uint64_t bytes = f.count * SizeOf(items_[0].dtype);
    Holding holding{.region_bytes = {(bytes + 4095) / 4096 * 4096},
                    .fragments = {}};
    if (f.count > 0) holding.fragments.push_back(f);
    return holding;
  }
  std::string description() const override {
    return absl::StrFormat("%d ranks", ranks_);
  }

 private:
  int ranks_;
  Cut cut_;
  std::vector<ItemSpec> items_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_PLAN_ROWS_JOB_H_
