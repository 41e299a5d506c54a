// Each test saves one tensor on some ranks and plans its load on others. Places
// are counted in bytes of f32 elements, four each; every shard's data begin at
// byte 4096 of its file.

#include "ckpt/plan/load_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/plan/memory_job.h"
#include "tests/unit/ckpt/plan/rows_job.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The manifest of `layout`, without its files' bytes.
Manifest Saved(const JobLayout& layout) {
  Manifest manifest = BlankManifest(layout);
  for (int rank = 0; rank < layout.world(); ++rank) {
    const SavePlan plan = PlanSave(layout.items(), layout.StoredBy(Rank{rank}));
    manifest.files.push_back(
        {.name = ShardName(rank),
         .bytes = plan.file_bytes,
         .unit_count = static_cast<uint32_t>(plan.units.size()),
         .chunks = plan.chunks});
  }
  const absl::Status valid = ValidateManifest(manifest);
  EXPECT_TRUE(valid.ok()) << valid;
  return manifest;
}

absl::StatusOr<LoadPlan> Plan(const Manifest& saved, const JobLayout& layout,
                              int rank) {
  return PlanLoad(saved, layout.items(), layout.WantedBy(Rank{rank}));
}

TEST(LoadPlanTest, TheDrawingOfTheHeader) {
  const auto plan = Plan(Saved(RowsJob(2, Cut::kRows, {8, 1})),
                         RowsJob(3, Cut::kElements, {9, 1}), 1);
  EXPECT_FALSE(plan.ok());  // 9 rows are not 8.

  const auto three = Plan(Saved(RowsJob(2, Cut::kElements, {8, 1})),
                          RowsJob(3, Cut::kElements, {8, 1}), 1);
  ASSERT_TRUE(three.ok()) << three.status();
  // Rank 1 wants rows 2, 3 and 4.
  EXPECT_THAT(three->steps, ElementsAre(ReadStep{.file = 0,
                                                 .file_offset = 4096 + 2 * 4,
                                                 .row_bytes = 8},
                                        ReadStep{.file = 1,
                                                 .file_offset = 4096,
                                                 .region_offset = 8,
                                                 .row_bytes = 4}));
  EXPECT_EQ(three->bytes_wanted, 12u);
}

TEST(LoadPlanTest, CopiesEveryElementOnceWhateverTheCutsAndTheRankCounts) {
  const std::vector<int64_t> shape = {8, 6};
  const Cut cuts[] = {Cut::kElements, Cut::kRows, Cut::kColumns};
  for (const Cut from : cuts) {
    for (int savers = 1; savers <= 9; ++savers) {
      const SavedJob saved = SaveJob(RowsJob(savers, from, shape));
      ASSERT_TRUE(ValidateManifest(saved.manifest).ok());
      for (const Cut to : cuts) {
        for (int loaders = 1; loaders <= 9; ++loaders) {
          const RowsJob job(loaders, to, shape);
          for (int rank = 0; rank < loaders; ++rank) {
            ASSERT_EQ(LoadRank(saved, job, rank, 1 << 20), "")
                << savers << " savers, cut " << int(from) << "; " << loaders
                << " loaders, cut " << int(to) << "; rank " << rank;
          }
        }
      }
    }
  }
}

TEST(LoadPlanTest, CopiesTensorsOfEveryNumberOfDimensions) {
  const Cut cuts[] = {Cut::kElements, Cut::kRows, Cut::kColumns};
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {7}, {1}, {3, 4, 5}, {2, 3, 4, 5}, {1, 6, 1, 4}}) {
    for (const Cut from : cuts) {
      const SavedJob saved = SaveJob(RowsJob(3, from, shape));
      ASSERT_TRUE(ValidateManifest(saved.manifest).ok());
      for (const Cut to : cuts) {
        for (const int loaders : {1, 2, 5}) {
          const RowsJob job(loaders, to, shape);
          for (int rank = 0; rank < loaders; ++rank) {
            ASSERT_EQ(LoadRank(saved, job, rank, 1 << 20), "")
                << shape.size() << " dimensions, cut " << int(from) << " to "
                << int(to) << ", rank " << rank << " of " << loaders;
          }
        }
      }
    }
  }
  const RowsJob scalar(1, Cut::kElements, {});
  EXPECT_EQ(LoadRank(SaveJob(scalar), scalar, 0, 4096), "");
}

TEST(LoadPlanTest, AColumnOfAWholeTensorIsOneStridedStep) {
  // Rank 1 of 3 wants columns 2 and 3 of 6.
  const auto plan = Plan(Saved(RowsJob(1, Cut::kRows, {4, 6})),
                         RowsJob(3, Cut::kColumns, {4, 6}), 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->steps, ElementsAre(ReadStep{.file_offset = 4096 + 2 * 4,
                                                .file_stride = 6 * 4,
                                                .region_stride = 2 * 4,
                                                .row_bytes = 2 * 4,
                                                .rows = 4}));
}

TEST(LoadPlanTest, RowsOfStoredColumnsAreOneStridedStepAFile) {
  const auto plan = Plan(Saved(RowsJob(2, Cut::kColumns, {4, 6})),
                         RowsJob(2, Cut::kRows, {4, 6}), 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->steps, ElementsAre(ReadStep{.file = 0,
                                                .file_offset = 4096 + 2 * 3 * 4,
                                                .file_stride = 12,
                                                .region_stride = 24,
                                                .row_bytes = 12,
                                                .rows = 2},
                                       ReadStep{.file = 1,
                                                .file_offset = 4096 + 2 * 3 * 4,
                                                .file_stride = 12,
                                                .region_offset = 12,
                                                .region_stride = 24,
                                                .row_bytes = 12,
                                                .rows = 2}));
}

TEST(LoadPlanTest, RowsThatAreContiguousOnBothSidesAreOneCopy) {
  // Elements 4 to 15 of [4, 6] stored as rows 0-1 and 2-3: two copies, though
  // the run is three boxes.
  const auto plan = Plan(Saved(RowsJob(2, Cut::kRows, {4, 6})),
                         RowsJob(2, Cut::kElements, {4, 6}), 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->steps,
              ElementsAre(ReadStep{.file_offset = 4096, .row_bytes = 48}));
}

TEST(LoadPlanTest, NamesTheFirstItemThatDiffers) {
  const Manifest saved = Saved(RowsJob(2, Cut::kRows, {8, 4}));
  const auto fails = [&](const RowsJob& job) {
    const auto plan = Plan(saved, job, 0);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
    return plan.status().ToString();
  };
  EXPECT_THAT(fails(RowsJob(2, Cut::kRows, {8, 6})),
              HasSubstr("item 'wte' (weight): the checkpoint has f32[8,4], the "
                        "job wants f32[8,6]"));
  EXPECT_THAT(fails(RowsJob(2, Cut::kRows, {8, 4}, "wte", DType::kBf16)),
              HasSubstr("the checkpoint has f32[8,4], the job wants "
                        "bf16[8,4]"));
  EXPECT_THAT(fails(RowsJob(2, Cut::kRows, {8, 4}, "wpe")),
              HasSubstr("item 'wpe' (weight): the checkpoint does not have it, "
                        "the job wants f32[8,4]"));
}

TEST(LoadPlanTest, SaysWhatTheManifestDoesNotCover) {
  Manifest saved = Saved(RowsJob(4, Cut::kRows, {8, 4}));
  saved.files[2].chunks.clear();
  const auto plan = Plan(saved, RowsJob(2, Cut::kRows, {8, 4}), 1);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(plan.status().ToString(),
              HasSubstr("item 'wte' (weight): the checkpoint has 8 of the 16 "
                        "wanted elements from element 0 of [4:8, 0:4] on"));
  EXPECT_TRUE(Plan(saved, RowsJob(2, Cut::kRows, {8, 4}), 0).ok());
}

}  // namespace
}  // namespace holdfast::ckpt
