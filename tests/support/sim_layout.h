// tests/support/sim_layout.h: a small state whose every element can be told.
//
// Two tensors, "a" of 40 x 96 and "b" of 50, with the trainer's four kinds, cut
// into contiguous runs over any number of ranks, in mid-row. Each fragment has
// a page of its own in memory, with a hole behind it, so that a rank's shard is
// eight units. The value of an element is a function of (item, index, step)
// alone, so what was loaded can be checked whatever the layout was.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_LAYOUT_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/layout/holding.h"

namespace holdfast::tests {

class SimLayout final : public ckpt::JobLayout {
 public:
  explicit SimLayout(int world);

  int world() const override { return world_; }
  const std::vector<ckpt::ItemSpec>& items() const override { return items_; }
  ckpt::Holding StoredBy(ckpt::Rank rank) const override;
  ckpt::Holding WantedBy(ckpt::Rank rank) const override;
  std::string description() const override;

 private:
  const int world_;
  std::vector<ckpt::ItemSpec> items_;
};

// Stores the state of `step` into the memory of one fragment.
void FillFragment(const ckpt::JobLayout& layout, const ckpt::Fragment& fragment,
                  int64_t step, std::span<const std::span<std::byte>> regions);

// "" or where the memory differs from the state of `step`.
std::string CompareFragment(const ckpt::JobLayout& layout,
                            const ckpt::Fragment& fragment, int64_t step,
                            std::span<const std::span<std::byte>> regions);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_LAYOUT_H_
