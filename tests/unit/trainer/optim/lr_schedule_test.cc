// The rate of a step is a number anyone can compute; these are computed by
// hand.

#include "trainer/optim/lr_schedule.h"

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

const OptimConfig kOptim = {
    .lr = 0.02, .min_lr = 0.01, .warmup_steps = 2, .decay_steps = 6};

TEST(LrScheduleTest, RisesLinearlyFallsAlongACosineAndStays) {
  EXPECT_DOUBLE_EQ(LearningRate(kOptim, 1), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(kOptim, 2), 0.02);
  EXPECT_DOUBLE_EQ(LearningRate(kOptim, 4), 0.015);  // half way
  EXPECT_DOUBLE_EQ(LearningRate(kOptim, 6), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(kOptim, 1000000), 0.01);
}

TEST(LrScheduleTest, NeverRisesAfterTheWarmUp) {
  const OptimConfig optim = {
      .lr = 3e-4, .min_lr = 3e-5, .warmup_steps = 10, .decay_steps = 200};
  for (int64_t step = 11; step <= 220; ++step) {
    EXPECT_LE(LearningRate(optim, step), LearningRate(optim, step - 1)) << step;
  }
}

TEST(LrScheduleTest, WithoutDecayThePeakStays) {
  const OptimConfig optim = {.lr = 0.5, .warmup_steps = 0, .decay_steps = 0};
  EXPECT_DOUBLE_EQ(LearningRate(optim, 1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 12345), 0.5);
}

TEST(LrScheduleTest, AWarmUpAsLongAsTheRunEndsAtTheFloor) {
  const OptimConfig optim = {
      .lr = 0.02, .min_lr = 0.01, .warmup_steps = 5, .decay_steps = 5};
  EXPECT_DOUBLE_EQ(LearningRate(optim, 4), 0.016);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 5), 0.01);
}

TEST(ClipScaleTest, ScalesDownToTheLimitAndNeverUp) {
  EXPECT_EQ(ClipScale(1.0, 4.0), 0.25f);
  EXPECT_EQ(ClipScale(1.0, 1.0), 1.0f);
  EXPECT_EQ(ClipScale(1.0, 0.1), 1.0f);
  EXPECT_EQ(ClipScale(0.0, 1e9), 1.0f);
}

}  // namespace
}  // namespace holdfast::trainer
