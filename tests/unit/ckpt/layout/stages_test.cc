// How layers are dealt to stages, evenly or as asked.

#include "ckpt/layout/train_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> Counts(const absl::StatusOr<std::vector<StageChunks>>& plan) {
  std::vector<int> counts;
  int next = 0;
  for (const StageChunks& stage : *plan) {
    EXPECT_EQ(stage.size(), 1u);
    EXPECT_EQ(stage[0].first, next);
    next += stage[0].count;
    counts.push_back(stage[0].count);
  }
  return counts;
}

TEST(StagesTest, EmbeddingAndHeadCountAsWork) {
  EXPECT_THAT(Counts(EvenStages(54, 4, 1, 1)), ElementsAre(13, 14, 14, 13));
  EXPECT_THAT(Counts(EvenStages(12, 4, 0, 0)), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(Counts(EvenStages(6, 2, 0, 2)), ElementsAre(4, 2));
  EXPECT_THAT(Counts(EvenStages(3, 3, 9, 0)), ElementsAre(1, 1, 1));
}

TEST(StagesTest, NoLayerIsDroppedWhenTheyDoNotDivide) {
  EXPECT_THAT(Counts(EvenStages(30, 4, 0, 0)), ElementsAre(7, 7, 8, 8));
}

TEST(StagesTest, TakesTheCountsThatUsersWrite) {
  EXPECT_THAT(Counts(StagesFromCounts(7, {3, 4})), ElementsAre(3, 4));
}

TEST(StagesTest, NamesTheNumbersThatDoNotFit) {
  EXPECT_THAT(EvenStages(3, 4, 0, 0).status().ToString(),
              HasSubstr("3 layers on pp = 4 stages"));
  EXPECT_THAT(StagesFromCounts(8, {3, 4}).status().ToString(),
              HasSubstr("stages [3, 4] add up to 7 layers, the model has 8"));
  EXPECT_THAT(StagesFromCounts(3, {3, 0}).status().ToString(),
              HasSubstr("stage 1 has 0 layers"));
  EXPECT_THAT(StagesFromCounts(3, {2, 2147483647, 1}).status().ToString(),
              HasSubstr("add up to 2147483650 layers, the model has 3"));
}

}  // namespace
}  // namespace holdfast::ckpt
