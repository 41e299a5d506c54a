// The figures of the 500B plan: TP8 x PP8 x DP80 on 640 servers of 8 GPUs.

#include "trainer/plan/figures.h"

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

constexpr double kParametersPerGpu = 500e9 / 64;

TEST(FiguresTest, StateOfOneGpuShrinksWithTheDistributedOptimizer) {
  EXPECT_DOUBLE_EQ(kParametersPerGpu, 7.8125e9);
  EXPECT_DOUBLE_EQ(kParametersPerGpu * ResidentBytesPerParameter(2, 1),
                   140.625e9);
  EXPECT_DOUBLE_EQ(kParametersPerGpu * ResidentBytesPerParameter(2, 80),
                   48.046875e9);
}

TEST(FiguresTest, ACheckpointIsSevenTerabytesWhateverTheDp) {
  EXPECT_DOUBLE_EQ(500e9 * CheckpointBytesPerParameter(2), 7e12);
  EXPECT_NEAR(7e12 / 5120 / 1e9, 1.37, 0.005);
  EXPECT_NEAR(7e12 / 640 / 1e9, 10.9, 0.05);
}

TEST(FiguresTest, TheBubbleIsTheShareOfTheStep) {
  EXPECT_NEAR(BubbleShare(8, 32), 0.179, 0.0005);
  EXPECT_NEAR(BubbleShare(8, 24), 0.226, 0.0005);
  EXPECT_NEAR(BubbleShare(8, 64), 0.099, 0.0005);
  EXPECT_EQ(BubbleShare(1, 5), 0.0);
}

TEST(FiguresTest, EarlyStagesKeepMoreMicrobatches) {
  EXPECT_EQ(InFlight(32, 8, 0), 8);
  EXPECT_EQ(InFlight(32, 8, 7), 1);
  EXPECT_EQ(InFlight(3, 8, 0), 3);
}

// The table for 640 servers at 6.5 failures per 1,000 server-days: a save
// blocks for 5 s.
TEST(FiguresTest, EffectiveTrainingTimeOfSixHundredFortyServers) {
  const double rate = 6.5e-3 / 86400;
  EXPECT_NEAR(EffectiveTrainingTime(640, rate, 180, 600, 5), 0.969, 0.0015);
  EXPECT_NEAR(EffectiveTrainingTime(640, rate, 600, 1800, 5), 0.925, 0.0015);
  EXPECT_NEAR(EffectiveTrainingTime(640, rate, 1800, 3600, 5), 0.826, 0.0015);
}

TEST(FiguresTest, YoungIntervalForAFiveSecondSave) {
  EXPECT_NEAR(YoungInterval(5, 5.8 * 3600) / 60, 7.6, 0.05);
  EXPECT_NEAR(YoungInterval(5, 16.0 * 3600) / 60, 12.6, 0.1);
}

}  // namespace
}  // namespace holdfast::trainer
