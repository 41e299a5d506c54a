// Which bytes a save writes where, and in what order.

#include "ckpt/plan/save_plan.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMi = 1 << 20;

const std::vector<ItemSpec>& Items() {
  static const auto* const items =
      new std::vector<ItemSpec>{{"a", "exp_avg", DType::kF32, {2, kMi}},
                                {"a", "weight", DType::kBf16, {2, kMi}},
                                {"b", "exp_avg", DType::kF32, {100}},
                                {"b", "weight", DType::kBf16, {100}}};
  return *items;
}

Fragment MakeFragment(ItemIndex item, int64_t first, int64_t count,
                      uint32_t region, uint64_t offset) {
  return {.item = item,
          .part = WholeBox(Items()[item].shape),
          .first = first,
          .count = count,
          .region = region,
          .offset = offset};
}

TEST(SavePlanTest, WalksOverTheRegionsSideBySide) {
  // 2 Mi elements: 4 MiB of weights, 8 MiB of moments, in units of 1 MiB.
  const SavePlan plan =
      PlanSave(Items(), {.region_bytes = {4 * kMi, 8 * kMi},
                         .fragments = {MakeFragment(0, 0, 2 * kMi, 1, 0),
                                       MakeFragment(1, 0, 2 * kMi, 0, 0)}});
  std::vector<std::pair<uint32_t, uint64_t>> walk;
  for (const WriteUnit& unit : plan.units) {
    EXPECT_EQ(unit.bytes, kMi);
    walk.push_back({unit.region, unit.region_offset / kMi});
  }
  EXPECT_THAT(walk,
              ElementsAre(std::pair(0, 0), std::pair(1, 0), std::pair(1, 1),
                          std::pair(0, 1), std::pair(1, 2), std::pair(1, 3),
                          std::pair(0, 2), std::pair(1, 4), std::pair(1, 5),
                          std::pair(0, 3), std::pair(1, 6), std::pair(1, 7)));
  // In the file each region's bytes lie together.
  EXPECT_EQ(plan.units[3].file_offset, 4096u + kMi);
  EXPECT_EQ(plan.units[1].file_offset, 4096u + 4 * kMi);
  EXPECT_EQ(plan.data_bytes, 12u * kMi);
  EXPECT_EQ(plan.index_offset, 4096u + 12 * kMi);
  EXPECT_EQ(plan.file_bytes, 4096u + 12 * kMi + 4096 + 4096);
}

TEST(SavePlanTest, FragmentsWithoutAHoleShareAUnit) {
  // 300 bf16 elements of a fill 600 bytes of their block; b follows in the
  // next.
  const SavePlan plan =
      PlanSave(Items(), {.region_bytes = {3 * 4096},
                         .fragments = {MakeFragment(3, 0, 100, 0, 8192),
                                       MakeFragment(1, 2048, 300, 0, 4096)}});
  EXPECT_THAT(plan.units, ElementsAre(WriteUnit{.region = 0,
                                                .region_offset = 4096,
                                                .file_offset = 4096,
                                                .bytes = 8192}));
  ASSERT_EQ(plan.pieces.size(), 2u);
  EXPECT_EQ(plan.pieces[0].item, 1u);
  EXPECT_EQ(plan.pieces[0].first, 2048);
  EXPECT_EQ(plan.pieces[0].count, 300);
  EXPECT_EQ(plan.pieces[0].unit_offset, 0u);
  EXPECT_EQ(plan.pieces[1].item, 3u);
  EXPECT_EQ(plan.pieces[1].first, 0);
  EXPECT_EQ(plan.pieces[1].count, 100);
  EXPECT_EQ(plan.pieces[1].unit_offset, 4096u);
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].offset, 4096u);
  EXPECT_EQ(plan.chunks[0].bytes_stored, 600u);
  EXPECT_EQ(plan.chunks[1].offset, 8192u);
  EXPECT_EQ(plan.data_bytes, 800u);
}

TEST(SavePlanTest, AHoleInMemorySplitsTheUnitAndIsNotStored) {
  // An FP32 block is 8192 bytes; 100 elements fill 400, and the second half of
  // the block is nobody's.
  const SavePlan plan =
      PlanSave(Items(), {.region_bytes = {3 * 8192},
                         .fragments = {MakeFragment(2, 0, 100, 0, 0),
                                       MakeFragment(0, 0, 2048, 0, 8192)}});
  EXPECT_THAT(plan.units, ElementsAre(WriteUnit{.region = 0,
                                                .region_offset = 0,
                                                .file_offset = 4096,
                                                .bytes = 4096},
                                      WriteUnit{.region = 0,
                                                .region_offset = 8192,
                                                .file_offset = 8192,
                                                .bytes = 8192}));
  EXPECT_EQ(plan.index_offset, 4096u + 4096 + 8192);
}

TEST(SavePlanTest, ALongFragmentIsDigestedInOrderAcrossItsUnits) {
  const SavePlan plan = PlanSave(
      Items(), {.region_bytes = {8 * kMi},
                .fragments = {MakeFragment(0, 512, kMi + 1, 0, 4096)}});
  EXPECT_EQ(plan.units.size(), 5u);
  int64_t next = 512;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    EXPECT_EQ(plan.pieces[i].unit, i);
    EXPECT_EQ(plan.pieces[i].first, next);
    next += plan.pieces[i].count;
  }
  EXPECT_EQ(next, 512 + kMi + 1);
  EXPECT_EQ(plan.units.back().bytes, 4096u);
  EXPECT_EQ(plan.pieces.back().count, 1);
}

TEST(SavePlanTest, ARankWithNothingStillHasAFile) {
  const SavePlan plan =
      PlanSave(Items(), {.region_bytes = {4096, 0}, .fragments = {}});
  EXPECT_THAT(plan.units, IsEmpty());
  EXPECT_THAT(plan.chunks, IsEmpty());
  EXPECT_EQ(plan.index_offset, 4096u);
  EXPECT_EQ(plan.file_bytes, 8192u);
}

TEST(SavePlanTest, TheHashDependsOnEveryNumber) {
  const SavePlan plan =
      PlanSave(Items(), {.region_bytes = {8192, 3 * 8192},
                         .fragments = {MakeFragment(3, 0, 100, 0, 0),
                                       MakeFragment(2, 0, 100, 1, 8192)}});
  const std::vector<std::function<void(SavePlan*)>> changes = {
      [](SavePlan* p) { ++p->units[1].region; },
      [](SavePlan* p) { ++p->units[0].region_offset; },
      [](SavePlan* p) { ++p->units[0].file_offset; },
      [](SavePlan* p) { ++p->units[0].bytes; },
      [](SavePlan* p) { std::swap(p->units[0], p->units[1]); },
      [](SavePlan* p) { p->units.pop_back(); },
      [](SavePlan* p) { ++p->pieces[0].unit; },
      [](SavePlan* p) { ++p->pieces[0].unit_offset; },
      [](SavePlan* p) { ++p->pieces[0].item; },
      [](SavePlan* p) { ++p->pieces[0].part.count[0]; },
      [](SavePlan* p) { ++p->pieces[0].part.first[0]; },
      [](SavePlan* p) { ++p->pieces[0].first; },
      [](SavePlan* p) { ++p->pieces[0].count; },
      [](SavePlan* p) { p->pieces.pop_back(); },
      [](SavePlan* p) { ++p->chunks[0].item; },
      [](SavePlan* p) { ++p->chunks[0].part.first[0]; },
      [](SavePlan* p) { ++p->chunks[0].first; },
      [](SavePlan* p) { ++p->chunks[0].count; },
      [](SavePlan* p) { ++p->chunks[0].offset; },
      [](SavePlan* p) { ++p->chunks[0].bytes_stored; },
      [](SavePlan* p) { p->chunks.pop_back(); },
      [](SavePlan* p) { ++p->index_offset; },
      [](SavePlan* p) { ++p->file_bytes; },
      [](SavePlan* p) { ++p->data_bytes; }};
  std::vector<uint64_t> hashes = {HashSavePlan(plan)};
  EXPECT_EQ(HashSavePlan(plan), hashes[0]);
  for (const auto& change : changes) {
    SavePlan other = plan;
    change(&other);
    hashes.push_back(HashSavePlan(other));
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(hashes[i], hashes[j]) << "changes " << j << " and " << i;
    }
  }
}

TEST(SavePlanTest, TheHashOfItemsSeesNamesKindsTypesAndShapes) {
  std::vector<uint64_t> hashes = {HashItems(Items())};
  for (const auto& change : std::vector<std::function<void(ItemSpec*)>>{
           [](ItemSpec* i) { i->name = "ab"; },
           [](ItemSpec* i) { i->kind = "exp_avg_sq"; },
           [](ItemSpec* i) { i->dtype = DType::kI32; },
           [](ItemSpec* i) {
             i->shape = {kMi, 2};
           },
           [](ItemSpec* i) { i->shape = {2 * kMi}; }}) {
    std::vector<ItemSpec> items = Items();
    change(&items[0]);
    hashes.push_back(HashItems(items));
  }
  hashes.push_back(HashItems({}));
  for (size_t i = 0; i < hashes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]);
  }
}

TEST(SavePlanDeathTest, OverlappingOrUnalignedFragmentsAreOurBug) {
  EXPECT_DEATH(
      PlanSave(Items(), {.region_bytes = {3 * 4096},
                         .fragments = {MakeFragment(1, 0, 4000, 0, 0),
                                       MakeFragment(3, 0, 100, 0, 4096)}}),
      "'b' weight: 100 elements at byte 4096 of region 0");
  EXPECT_DEATH(
      PlanSave(Items(), {.region_bytes = {3 * 4096},
                         .fragments = {MakeFragment(3, 0, 100, 0, 512)}}),
      "100 elements at byte 512");
  EXPECT_DEATH(
      PlanSave(Items(), {.region_bytes = {4096},
                         .fragments = {MakeFragment(3, 0, 100, 0, 4096)}}),
      "which has 4096 bytes");
}

}  // namespace
}  // namespace holdfast::ckpt
