// The division of layers over stages: the header's examples, and what holds for
// every size.

#include "trainer/parallel/stages.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

TEST(StagesTest, CountsEmbeddingAndHeadAsALayerEach) {
  EXPECT_THAT(*PlanStageLayers(54, 4, {}), ElementsAre(13, 14, 14, 13));
  EXPECT_THAT(*PlanStageLayers(12, 4, {}), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(*PlanStageLayers(5, 2, {}), ElementsAre(2, 3));
  EXPECT_THAT(*PlanStageLayers(7, 1, {}), ElementsAre(7));
}

TEST(StagesTest, EveryLayerHasOneStageAndWorkIsEvenToOneLayer) {
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int64_t pp = 1; pp <= layers; ++pp) {
      const auto plan = PlanStageLayers(layers, pp, {});
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(std::accumulate(plan->begin(), plan->end(), int64_t{0}),
                layers);
      EXPECT_THAT(*plan, Each(Ge(1)));
      // The busiest stage cannot be less busy than the mean, nor than an end
      // stage with its one layer.
      const int64_t mean = (layers + 2 + pp - 1) / pp;
      std::vector<int64_t> work = *plan;
      ++work.front();
      ++work.back();
      EXPECT_EQ(*std::max_element(work.begin(), work.end()),
                std::max<int64_t>(mean, pp == 1 ? 3 : 2))
          << layers << " layers on " << pp;
    }
  }
}

TEST(StagesTest, AGivenDivisionIsTakenAsItIs) {
  EXPECT_THAT(*PlanStageLayers(30, 4, {9, 7, 7, 7}), ElementsAre(9, 7, 7, 7));
  EXPECT_FALSE(PlanStageLayers(30, 4, {7, 7, 7, 7}).ok());
  EXPECT_FALSE(PlanStageLayers(30, 4, {30, 0, 0, 0}).ok());
}

}  // namespace
}  // namespace holdfast::trainer
