// The collectives of the GPU plug-in, as far as they can be asked without a
// GPU: they are there, of this build, and refuse what is no GPU.

#include "trainer/parallel/gpu_mesh.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/device_plugin.h"

namespace holdfast::trainer {
namespace {

TEST(GpuMeshTest, ThePlugInHasCollectivesOfThisBuildAndWantsAGpu) {
#ifndef HOLDFAST_WITH_CUDA
  GTEST_SKIP() << "this build has no GPU plug-in";
#endif
  const auto plugin = kernels::LoadDevicePlugin("cuda");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto entry = FindCollectivesPlugin(**plugin);
  ASSERT_TRUE(entry.ok()) << entry.status();
  const auto version = (*entry)->version();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_THAT(*version, testing::StartsWith("NCCL 2."));
  const auto cpu = kernels::NewCpuDevice();
  EXPECT_EQ((*entry)
                ->open_job({.where = "rank 0", .device = cpu.get()})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::trainer
