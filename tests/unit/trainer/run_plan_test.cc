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

Config FullSize(std::vector<std::string> sets) {
  const std::string path =
      std::string(HOLDFAST_SOURCE_DIR) + "/trainer/configs/dense-500b.toml";
  absl::StatusOr<Config> config = LoadConfig(path, sets);
  EXPECT_TRUE(config.ok()) << config.status();
  const absl::Status resolved = ResolveConfig(*config, 5120);
  EXPECT_TRUE(resolved.ok()) << resolved;
  return *config;
}

TEST(RunPlanTest, OnGpusCommunicationIsCountedAndNothingElseChanges) {
  const auto on_cpu = PlanRun(FullSize({}));
  const auto on_gpus = PlanRun(FullSize({"device=cuda"}));
  ASSERT_TRUE(on_cpu.ok() && on_gpus.ok());
  ASSERT_EQ(on_gpus->stages.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const MemoryPlan& cpu = on_cpu->stages[i].memory;
    MemoryPlan gpu = on_gpus->stages[i].memory;
    EXPECT_EQ(cpu.communication, 0);
    // TP inside a host, 7 peers of 32 channels; DP and PP over the network.
    EXPECT_NEAR(gpu.communication / 1e9, 4.4, 0.4) << "stage " << i;
    gpu.communication = 0;
    // Gradients are exchanged in larger pieces, with 64 MiB of scratch, not 8;
    // and kernels have some.
    EXPECT_NEAR((gpu.buffers - gpu.gpu_scratch - cpu.buffers) / 1e6, 58.7, 1.5)
        << "stage " << i;
    gpu.buffers = cpu.buffers;
    EXPECT_EQ(gpu, cpu) << "stage " << i;
  }
  // Of the seed's plan: 48 GB of state for a GPU of a middle stage.
  const MemoryPlan& middle = on_gpus->stages[3].memory;
  EXPECT_NEAR((middle.weights + middle.gradients + middle.optimizer) / 1e9,
              48.0, 1.0);
}

}  // namespace
}  // namespace holdfast::trainer
