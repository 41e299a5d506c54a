// Which device a rank gets, and what is said about it, without a GPU.

#include "trainer/run_device.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of a GPU that is described and never touched.
RunDevice Gpu(const std::string& bus) {
  RunDevice device;
  device.plugin = reinterpret_cast<const kernels::DevicePlugin*>(&device);
  device.info.ordinal = 3;
  device.info.name = "NVIDIA H200";
  device.info.bus = bus;
  device.info.bytes_total = 150'000'000'000;
  device.info.bytes_free = 120'000'000'000;
  return device;
}

TEST(RunDeviceTest, TheProcessorIsTheDefault) {
  const auto device = OpenRunDevice(Config{}, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->device->name(), "cpu");
  EXPECT_FALSE(device->on_gpu());
  EXPECT_EQ(DescribeDevice(*device), "processor");
}

TEST(RunDeviceTest, WithoutThePluginTheRunIsToldWhereItWasLookedFor) {
  Config config;
  config.device = DeviceChoice::kCuda;
  ::setenv("HOLDFAST_PLUGIN_DIR", "/nowhere", 1);
  const auto device = OpenRunDevice(config, 0);
  ::unsetenv("HOLDFAST_PLUGIN_DIR");
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()),
              AllOf(HasSubstr("libholdfast_cuda.so"), HasSubstr("/nowhere"),
                    HasSubstr("use device = cpu")));
}

TEST(RunDeviceTest, RanksWithTheSameGpuOfTheSameHostAreCounted) {
  constexpr int kRanks = 6;
  const char* const hosts[kRanks] = {"a", "a", "a", "b", "b", "b"};
  const char* const buses[kRanks] = {"0", "1", "0", "0", "0", "0"};
  const int expected[kRanks] = {2, 1, 2, 3, 3, 3};
  const absl::Status ran = RunInprocRanks(kRanks, [&](Collectives& world) {
    const auto rank = static_cast<size_t>(world.rank());
    RunDevice device = Gpu(buses[rank]);
    const absl::Status status = CountSharing(world, hosts[rank], device);
    EXPECT_EQ(device.ranks_sharing, expected[rank]) << rank;
    return status;
  });
  EXPECT_TRUE(ran.ok()) << ran;
}

TEST(RunDeviceTest, APlanMustFitInTheRanksShareOfTheFreeMemory) {
  RunDevice device = Gpu("0000:3b:00.0");
  device.ranks_sharing = 4;
  MemoryPlan plan;
  plan.weights = 20'000'000'000;
  plan.gpu_scratch = 100'000'000;
  plan.activations = 10'000'000'000 - plan.gpu_scratch - kGpuReserveBytes;
  EXPECT_TRUE(CheckGpuMemory(device, plan, 5, "node7").ok());
  plan.buffers = 1;
  const absl::Status status = CheckGpuMemory(device, plan, 5, "node7");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("rank 5 needs 29.36 GB (weights 20.00"),
            HasSubstr("and 0.64 GB for kernels and libraries"),
            HasSubstr("GPU 3 of node7 (NVIDIA H200) has 120.00 of 150.00 GB "
                      "free for 4 ranks")));
}

TEST(RunDeviceTest, CommunicationCountsAndIsNamed) {
  RunDevice device = Gpu("0000:3b:00.0");
  MemoryPlan plan;
  plan.weights = 120'000'000'000 - kGpuReserveBytes - 3'000'000'000;
  EXPECT_TRUE(CheckGpuMemory(device, plan, 0, "node7").ok());
  plan.communication = 3'010'000'000;
  EXPECT_THAT(
      std::string(CheckGpuMemory(device, plan, 0, "node7").message()),
      HasSubstr("communication 3.01) and 0.54 GB for kernels and libraries"));
}

TEST(RunDeviceTest, OverlapWantsRoomForAllKernelsOfNcclThatMayWait) {
  RunDevice device = Gpu("0000:3b:00.0");
  device.info.multiprocessors = 132;
  const OverlapConfig both{.grad_reduce = true, .param_gather = true};
  EXPECT_TRUE(CheckOverlap(device, both, 5, "node7").ok());
  device.info.multiprocessors = 114;
  EXPECT_TRUE(CheckOverlap(device, OverlapConfig{}, 5, "node7").ok());
  const absl::Status status =
      CheckOverlap(device, OverlapConfig{.param_gather = true}, 5, "node7");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 5: overlap.param_gather needs a GPU with "
                              "132 multiprocessors"),
                    HasSubstr("GPU 3 of node7 (NVIDIA H200) has 114")));
}

TEST(RunDeviceTest, MessagesThroughTheHostMustFitInItsMemory) {
  EXPECT_TRUE(CheckPinnedMemory(2'000'000'000, 2'000'000'000, 3, "n").ok());
  EXPECT_TRUE(CheckPinnedMemory(2'000'000'000, 0, 3, "n").ok()) << "unknown";
  const absl::Status status =
      CheckPinnedMemory(2'010'000'000, 2'000'000'000, 3, "node7");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 3 shares its GPU"),
                    HasSubstr("2.01 GB of pinned memory of node7, which has "
                              "2.00 GB free")));
}

TEST(RunDeviceTest, SharingIsSaid) {
  RunDevice device = Gpu("0000:3b:00.0");
  EXPECT_EQ(DescribeDevice(device),
            "GPU 3 (NVIDIA H200, 150.0 GB, 0000:3b:00.0)");
  device.ranks_sharing = 8;
  EXPECT_EQ(DescribeDevice(device),
            "GPU 3 (NVIDIA H200, 150.0 GB, 0000:3b:00.0), shared by 8 ranks");
}

}  // namespace
}  // namespace holdfast::trainer
