// The plan of a conversion: every unit once, in the order of the rows, in
// windows and rounds that depend on the layout alone.

#include "ckpt/convert/convert_plan.h"

#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/saved_run.h"

namespace holdfast::ckpt {
namespace {

using tests::SmallLayout;

ConvertPlan Plan(const JobLayout& layout) {
  return PlanConversion(layout, {.window_bytes = 64 << 10,
                                 .round_bytes = 192 << 10,
                                 .round_bytes_per_file = 0});
}

TEST(ConvertPlanTest, EveryElementIsInOneUnitAndEveryUnitInOneWindow) {
  const auto layout = SmallLayout(4, 2, 3);
  const ConvertPlan plan = Plan(*layout);
  ASSERT_EQ(plan.files.size(), 24u);
  std::map<ItemIndex, int64_t> elements;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  size_t next = 0;
  for (const WindowPlan& window : plan.windows) {
    EXPECT_EQ(window.first, next);
    EXPECT_LE(window.bytes, plan.window_bytes_max);
    next = window.end;
    for (size_t i = window.first; i < window.end; ++i) {
      const UnitRef& ref = plan.order[i];
      EXPECT_TRUE(seen.insert({ref.file, ref.unit}).second);
      const TargetFile& file = plan.files[ref.file];
      for (const DigestPiece& piece :
           PiecesOf(layout->items(), file, file.units[ref.unit])) {
        elements[piece.item] += piece.count;
      }
    }
  }
  EXPECT_EQ(next, plan.order.size());
  size_t units = 0;
  for (const TargetFile& file : plan.files) units += file.units.size();
  EXPECT_EQ(units, plan.order.size());
  for (ItemIndex i = 0; i < layout->items().size(); ++i) {
    EXPECT_EQ(elements[i], WholeBox(layout->items()[i].shape).elements());
  }
  size_t windows = 0;
  for (const RoundPlan& round : plan.rounds) {
    EXPECT_EQ(round.first_window, windows);
    windows = round.end_window;
  }
  EXPECT_EQ(windows, plan.windows.size());
  EXPECT_GT(plan.rounds.size(), 2u);
}

// The four files of one matrix that TP cuts by columns are wanted side by side.
TEST(ConvertPlanTest, FilesOfTheSameRowsFollowEachOther) {
  const auto layout = SmallLayout(4, 1, 1);
  const ConvertPlan plan = Plan(*layout);
  ItemIndex down = 0;
  while (layout->items()[down].name != "model.layers.0.mlp.down_proj.weight" ||
         layout->items()[down].kind != "master") {
    ++down;
  }
  size_t first = plan.order.size();
  size_t last = 0;
  std::set<uint32_t> files;
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const TargetFile& file = plan.files[plan.order[i].file];
    for (const DigestPiece& piece :
         PiecesOf(layout->items(), file, file.units[plan.order[i].unit])) {
      if (piece.item != down) continue;
      first = std::min(first, i);
      last = i;
      files.insert(plan.order[i].file);
    }
  }
  EXPECT_EQ(files.size(), 4u);
  EXPECT_LT(last - first, 8u);
}

TEST(ConvertPlanTest, ItsHashIsThatOfTheLayoutAndTheOrder) {
  EXPECT_EQ(Plan(*SmallLayout(2, 1, 2)).hash, Plan(*SmallLayout(2, 1, 2)).hash);
  EXPECT_NE(Plan(*SmallLayout(2, 1, 2)).hash, Plan(*SmallLayout(2, 1, 3)).hash);
  EXPECT_NE(Plan(*SmallLayout(2, 1, 2)).hash,
            PlanConversion(*SmallLayout(2, 1, 2), {}).hash);
}

TEST(ConvertPlanTest, MoreRanksThanBlocksGiveEmptyFiles) {
  const ConvertPlan plan = Plan(*SmallLayout(1, 1, 200));
  EXPECT_EQ(plan.files.size(), 200u);
  size_t empty = 0;
  for (const TargetFile& file : plan.files) empty += file.units.empty();
  EXPECT_GT(empty, 0u);
}

}  // namespace
}  // namespace holdfast::ckpt
