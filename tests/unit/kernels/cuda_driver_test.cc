// The words for what driver and GPUs a machine has; no driver is needed.

#include "kernels/cuda_driver.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

using ::testing::HasSubstr;

std::string Explained(int driver, CudaCountError error, int count) {
  const absl::Status status =
      ExplainCudaCount("node7", driver, 13000, error, "some words", count);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(CudaDriverTest, VersionsReadAsPeopleWriteThem) {
  EXPECT_EQ(CudaVersionText(13000), "13.0");
  EXPECT_EQ(CudaVersionText(12080), "12.8");
  EXPECT_EQ(CudaVersionText(13010), "13.1");
}

TEST(CudaDriverTest, NoDriverAndAnOldOneAreDifferentLines) {
  EXPECT_EQ(Explained(0, CudaCountError::kInsufficientDriver, 0),
            "no NVIDIA driver on node7: device = cuda needs one; use device = "
            "cpu");
  EXPECT_EQ(Explained(12040, CudaCountError::kInsufficientDriver, 0),
            "the NVIDIA driver on node7 is too old: it supports CUDA 12.4, and "
            "this build needs 13.0; update the driver or use device = cpu");
}

TEST(CudaDriverTest, ADriverWithoutGpusNamesTheVariableThatHidesThem) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_THAT(Explained(13000, CudaCountError::kNoDevice, 0),
              HasSubstr("shows no GPU (CUDA_VISIBLE_DEVICES is '')"));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(Explained(13000, CudaCountError::kNone, 0),
            "the NVIDIA driver on node7 shows no GPU; use device = cpu");
}

TEST(CudaDriverTest, OtherErrorsKeepTheLibrarysWords) {
  EXPECT_EQ(Explained(13000, CudaCountError::kOther, 0),
            "asking the NVIDIA driver on node7 for its GPUs: some words; see "
            "whether nvidia-smi works there, or use device = cpu");
}

TEST(CudaDriverTest, TheToolkitsStubIsNoDriver) {
  EXPECT_EQ(Explained(0, CudaCountError::kStubLibrary, 0),
            "libcuda.so.1 on node7 is the CUDA toolkit's stub, which is for "
            "linking: take its folder off LD_LIBRARY_PATH, or use device = cpu "
            "where there is no driver");
}

TEST(CudaDriverTest, ACountIsFine) {
  EXPECT_TRUE(
      ExplainCudaCount("node7", 13000, 13000, CudaCountError::kNone, "", 8)
          .ok());
}

TEST(CudaDriverTest, OrdinalsCountFromZero) {
  EXPECT_TRUE(ExplainCudaOrdinal(0, 1).ok());
  EXPECT_TRUE(ExplainCudaOrdinal(7, 8).ok());
  EXPECT_EQ(ExplainCudaOrdinal(8, 8).message(),
            "GPU 8 does not exist: the driver shows 8, numbered from 0");
  EXPECT_EQ(ExplainCudaOrdinal(-1, 8).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CudaDriverTest, OlderGpusAreRefusedByName) {
  DeviceInfo info;
  info.ordinal = 2;
  info.name = "NVIDIA A100";
  info.capability_major = 8;
  EXPECT_EQ(ExplainCudaCapability("node7", info).message(),
            "GPU 2 of node7, NVIDIA A100, has compute capability 8.0, and this "
            "build has code for 9.0 and later; use device = cpu");
  info.capability_major = 9;
  EXPECT_TRUE(ExplainCudaCapability("node7", info).ok());
  info.capability_major = 10;
  EXPECT_TRUE(ExplainCudaCapability("node7", info).ok());
  info.capability_major = 12;
  EXPECT_TRUE(ExplainCudaCapability("node7", info).ok());
}

}  // namespace
}  // namespace holdfast::kernels
