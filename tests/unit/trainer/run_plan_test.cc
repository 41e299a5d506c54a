// What `holdfast plan` says of a step is what the fullest member does.

#include "trainer/run_plan.h"

#include <string>

#include "gtest/gtest.h"
#include "trainer/config.h"

namespace holdfast::trainer {
namespace {

Config Tiny(int64_t world, std::vector<std::string> sets = {}) {
  const std::string path =
      std::string(HOLDFAST_SOURCE_DIR) + "/trainer/configs/tiny.toml";
  absl::StatusOr<Config> config = LoadConfig(path, sets);
  EXPECT_TRUE(config.ok()) << config.status();
  const absl::Status resolved = ResolveConfig(*config, world);
  EXPECT_TRUE(resolved.ok()) << resolved;
  return *config;
}

TEST(RunPlanTest, UnequalMembersCountAsTheFullest) {
  // 8 leaves of one microbatch over 3 members: 3, 3 and 2.
  const absl::StatusOr<RunPlan> plan = PlanRun(Tiny(3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->microbatches, 3);
  EXPECT_EQ(PlanRun(Tiny(8))->microbatches, 1);
  EXPECT_EQ(PlanRun(Tiny(1))->microbatches, 8);
}

TEST(RunPlanTest, ACheckpointHasFourteenBytesAParameterWhateverTheMesh) {
  const Config one = Tiny(1);
  const int64_t bytes = ParameterCount(one.model) * 14;
  EXPECT_EQ(PlanRun(one)->checkpoint_bytes, bytes);
  const Config eight = Tiny(8, {"parallel.tp=2", "parallel.pp=2"});
  EXPECT_EQ(PlanRun(eight)->checkpoint_bytes, bytes);
}

}  // namespace
}  // namespace holdfast::trainer
