// The plug-in on hardware: what it finds, and that memory and streams are as
// kernels/device.h says.

#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device_plugin.h"
#include "kernels/elementwise.h"
#include "tests/device/test_device.h"

namespace holdfast::tests {
namespace {

using kernels::Buffer;
using kernels::MemorySpace;

class DevicePluginOnHardware : public OnDevice {};

TEST_F(DevicePluginOnHardware, TheCardIsOneThatThereIsCodeFor) {
  if (TestDeviceIsFake()) GTEST_SKIP() << "a fake device has no card";
  const auto plugin = kernels::LoadDevicePlugin("cuda");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto info = (*plugin)->Info(0);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->capability_major, 9) << info->name;
  EXPECT_GT(info->multiprocessors, 0);
  EXPECT_GT(info->bytes_free, 0);
  RecordFigure(info->name + " memory", "GB",
               static_cast<double>(info->bytes_total) / 1e9);
}

TEST_F(DevicePluginOnHardware, BytesComeBackAsTheyWent) {
  constexpr size_t kCount = 1 << 20;
  constexpr size_t kBytes = kCount * sizeof(float);
  auto on_device =
      kernels::AllocateOwned(device(), MemorySpace::kDevice, kBytes);
  auto pinned = kernels::AllocateOwned(device(), MemorySpace::kPinned, kBytes);
  auto back = kernels::AllocateOwned(device(), MemorySpace::kPinned, kBytes);
  ASSERT_TRUE(on_device.ok() && pinned.ok() && back.ok());
  const auto stream = device().NewStream();
  // Memory starts as zeros.
  device().Copy(back->buffer(), on_device->buffer(), *stream);
  device().Sync(*stream);
  ASSERT_TRUE(device().status().ok()) << device().status();
  const std::vector<float> zeros(kCount, 0.0f);
  EXPECT_EQ(std::memcmp(back->as<float>(), zeros.data(), kBytes), 0);

  std::iota(pinned->as<float>(), pinned->as<float>() + kCount, 0.0f);
  device().Copy(on_device->buffer(), pinned->buffer(), *stream);
  kernels::Scale(*stream, on_device->as<float>(), 2.0f, kCount);
  const kernels::Event event = device().Record(*stream);
  const auto side = device().NewStream();
  device().WaitFor(*side, event);
  device().Copy(back->buffer(), on_device->buffer(), *side);
  device().Sync(*side);
  ASSERT_TRUE(device().status().ok()) << device().status();
  EXPECT_TRUE(device().Query(event));
  for (size_t i = 0; i < kCount; i += 4097) {
    ASSERT_EQ(back->as<float>()[i], 2.0f * static_cast<float>(i)) << i;
  }
}

TEST_F(DevicePluginOnHardware, MoreMemoryThanThereIsIsRefusedInNumbers) {
  const auto buffer = device().Allocate(MemorySpace::kDevice, size_t{1} << 50);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted)
      << buffer.status();
  EXPECT_TRUE(device().status().ok()) << "a refusal is no error of the device";
}

}  // namespace
}  // namespace holdfast::tests
