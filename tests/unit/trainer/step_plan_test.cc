// What is known of a step before it runs: memory by kind against the ledger of
// DESIGN section 3, and the numbers that are refused. That a runner takes what
// the plan says is checked in every run of tests/support/step_rig.cc.

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/step_rig.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;
using tests::RunOptions;
using tests::StepOptionsOf;

RunOptions Tiny() {
  RunOptions options;
  options.model = tests::TinyModel(/*tied=*/false);
  return options;
}

TEST(StepPlanTest, ResidentStateIsSixAndTwelveByDpBytesAParameter) {
  // Large enough that half-empty blocks do not matter.
  RunOptions options;
  options.model = {.layers = 4,
                   .hidden = 256,
                   .heads = 4,
                   .kv_heads = 4,
                   .ffn = 768,
                   .vocab = 4096,
                   .seq_len = 16};
  options.compute = ComputeType::kBf16;
  options.virtual_dp = 8;
  options.global_seqs = 8;
  for (const int dp : {1, 2, 8}) {
    options.mesh.dp = dp;
    const auto layout = tests::LayoutOf(options);
    for (int rank = 0; rank < dp; ++rank) {
      const auto plan = StepRunner::PlanMemory(StepOptionsOf(options, *layout),
                                               ckpt::Rank{rank});
      ASSERT_TRUE(plan.ok()) << plan.status();
      const double resident = static_cast<double>(
          plan->weights + plan->gradients + plan->optimizer);
      const double parameters =
          static_cast<double>(ParameterCount(options.model));
      EXPECT_NEAR(resident / parameters, 6.0 + 12.0 / dp,
                  0.005 * (6.0 + 12.0 / dp));
      // log2(8 / dp) further sums of four bytes.
      const double sums = std::log2(8.0 / dp);
      EXPECT_NEAR(static_cast<double>(plan->live_sums) / parameters, 4 * sums,
                  0.05);
    }
  }
}

TEST(StepPlanTest, InFlightMicrobatchesBoundTheActivationsOfAStage) {
  RunOptions options = Tiny();
  options.model.layers = 4;
  options.mesh.pp = 4;
  const auto layout = tests::LayoutOf(options);
  std::vector<int64_t> activations;
  for (int stage = 0; stage < 4; ++stage) {
    const auto plan =
        StepRunner::PlanMemory(StepOptionsOf(options, *layout),
                               ckpt::RankAt(options.mesh, {.pp = stage}));
    ASSERT_TRUE(plan.ok());
    activations.push_back(plan->activations);
  }
  EXPECT_NEAR(static_cast<double>(activations[1]) / activations[2], 1.5, 0.02);
  EXPECT_GT(activations[0], activations[1]);
  EXPECT_GT(activations[2], activations[3]);
}

TEST(StepPlanTest, RefusesNumbersThatDoNotFitBeforeAnythingStarts) {
  const auto refusal = [](const RunOptions& options) {
    const auto layout = tests::LayoutOf(options);
    const auto plan =
        StepRunner::PlanMemory(StepOptionsOf(options, *layout), ckpt::Rank{0});
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  };
  RunOptions options = Tiny();
  options.micro_seqs = 3;
  EXPECT_THAT(refusal(options), HasSubstr("batch.global_seqs = 8"));
  options = Tiny();
  options.virtual_dp = 3;
  EXPECT_THAT(refusal(options), HasSubstr("numerics.virtual_dp = 3 does not"));
  options = Tiny();
  options.virtual_dp = 2;
  options.mesh.dp = 4;
  EXPECT_THAT(refusal(options),
              HasSubstr("dp = 4 is above numerics.virtual_dp = 2"));
  options = Tiny();
  options.invariant = false;
  options.mesh.dp = 9;
  EXPECT_THAT(refusal(options), HasSubstr("dp = 9 members share 8"));
}

}  // namespace
}  // namespace holdfast::trainer
