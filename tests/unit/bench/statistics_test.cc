// Intervals by rank: checked against tables, by hand, and by drawing from a
// distribution whose median is known.

#include "tests/bench/support/statistics.h"

#include <cmath>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"

namespace holdfast::bench {
namespace {

// Uniform in (0, 1); draw `i` of trial `t`.
double Uniform(uint64_t t, uint64_t i) {
  return (static_cast<double>(ckpt::Philox64(7, t, i) >> 11) + 0.5) /
         9007199254740992.0;
}

TEST(StatisticsTest, MedianOfOddAndEvenNumbers) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
}

TEST(StatisticsTest, CoverageIsThatOfTheSignTest) {
  // Sums of binomial coefficients over 2^n.
  EXPECT_DOUBLE_EQ(CoverageOfOrderStatistics(9, 2), 1 - 2 * 10.0 / 512);
  EXPECT_DOUBLE_EQ(CoverageOfOrderStatistics(9, 3), 1 - 2 * 46.0 / 512);
  EXPECT_DOUBLE_EQ(CoverageOfOrderStatistics(5, 1), 1 - 2 * 1.0 / 32);
}

TEST(StatisticsTest, TheIntervalOfNineGoesFromTheSecondToTheEighth) {
  const Interval interval = MedianInterval({9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(interval.middle, 5);
  EXPECT_EQ(interval.low, 2);
  EXPECT_EQ(interval.high, 8);
  EXPECT_NEAR(interval.coverage, 0.961, 0.001);
}

TEST(StatisticsTest, FewValuesSayHowLittleTheyCover) {
  EXPECT_EQ(MedianInterval({2}).coverage, 0);
  const Interval three = MedianInterval({2, 1, 4});
  EXPECT_EQ(three.low, 1);
  EXPECT_EQ(three.high, 4);
  EXPECT_DOUBLE_EQ(three.coverage, 0.75);
}

TEST(StatisticsTest, TheIntervalHoldsTheMedianAsOftenAsItSays) {
  constexpr int kTrials = 2000;
  for (const int n : {9, 11, 20}) {
    int held = 0;
    double coverage = 0;
    for (int t = 0; t < kTrials; ++t) {
      std::vector<double> values;
      // Skewed: the median of u^3 is 1/8.
      for (int i = 0; i < n; ++i) values.push_back(std::pow(Uniform(t, i), 3));
      const Interval interval = MedianInterval(values);
      coverage = interval.coverage;
      held += interval.low <= 0.125 && 0.125 <= interval.high;
    }
    EXPECT_GE(coverage, 0.9);
    EXPECT_NEAR(1.0 * held / kTrials, coverage, 0.03) << n;
  }
}

TEST(StatisticsTest, AStraightLineHasItsSlopeAndNoDoubt) {
  std::vector<double> values;
  for (int i = 0; i < 20; ++i) values.push_back(100 + 3 * i);
  const Interval slope = SlopeInterval(values);
  EXPECT_EQ(slope.middle, 3);
  EXPECT_EQ(slope.low, 3);
  EXPECT_EQ(slope.high, 3);
}

TEST(StatisticsTest, NoiseAndAJumpAreNoSlopeAndALeakIsOne) {
  constexpr int kTrials = 200;
  int level_holds_zero = 0;
  int leak_holds_zero = 0;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> level, leak;
    for (int i = 0; i < 100; ++i) {
      const double noise = Uniform(1000 + t, i);
      level.push_back(noise);
      leak.push_back(noise + 0.01 * i);
    }
    const Interval flat = SlopeInterval(level);
    level_holds_zero += flat.low <= 0 && 0 <= flat.high;
    const Interval rising = SlopeInterval(leak);
    leak_holds_zero += rising.low <= 0;
    EXPECT_NEAR(rising.middle, 0.01, 0.005);
  }
  EXPECT_NEAR(1.0 * level_holds_zero / kTrials, 0.9, 0.07);
  EXPECT_EQ(leak_holds_zero, 0);

  std::vector<double> jump(100, 5.0);
  for (int i = 0; i < 10; ++i) jump[i] = 1;  // a warm-up
  EXPECT_EQ(SlopeInterval(jump).middle, 0);
}

}  // namespace
}  // namespace holdfast::bench
