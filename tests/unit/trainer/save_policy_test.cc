// When saves fall due, and how their cost is counted.

#include "trainer/save_policy.h"

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

TEST(SavePolicyTest, StepsDecideAtMultiples) {
  const SavePolicy policy({.steps = 20}, absl::ZeroDuration());
  EXPECT_FALSE(policy.Due(19, absl::Hours(9)));
  EXPECT_TRUE(policy.Due(20, absl::ZeroDuration()));
  EXPECT_TRUE(policy.Due(40, absl::ZeroDuration()));
}

TEST(SavePolicyTest, TimeCountsFromTheLastSave) {
  SavePolicy policy({.seconds = 60}, absl::Seconds(100));
  EXPECT_FALSE(policy.Due(1, absl::Seconds(159)));
  EXPECT_TRUE(policy.Due(2, absl::Seconds(160)));
  policy.Began(absl::Seconds(161));
  EXPECT_FALSE(policy.Due(3, absl::Seconds(220)));
  EXPECT_TRUE(policy.Due(4, absl::Seconds(221)));
}

TEST(SavePolicyTest, NothingIsDueWithoutAnInterval) {
  const SavePolicy policy({}, absl::ZeroDuration());
  EXPECT_FALSE(policy.Due(500, absl::Hours(100)));
}

TEST(StallMeterTest, CountsBothStepsAfterTheSaveAgainstQuietOnes) {
  StallMeter meter;
  EXPECT_FALSE(meter.StepDone(900, false));  // the first step warms up
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(meter.StepDone(100, false));
  meter.SaveBegan(2);
  EXPECT_FALSE(meter.StepDone(130, true));
  const auto stall = meter.StepDone(110, true);
  ASSERT_TRUE(stall.has_value());
  EXPECT_DOUBLE_EQ(*stall, 2 + 30 + 10);
}

TEST(StallMeterTest, SaysNothingBeforeThereIsSomethingToCompareWith) {
  StallMeter meter;
  meter.StepDone(100, false);
  meter.SaveBegan(0);
  meter.StepDone(100, true);
  EXPECT_FALSE(meter.StepDone(100, true).has_value());
}

}  // namespace
}  // namespace holdfast::trainer
