// The device contract, held by the CPU device and the fake one, and what only
// the fake one does: crash a host that touches device memory, finish late.

#include "kernels/device.h"

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "kernels/fake_device.h"
#include "kernels/matmul.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

std::unique_ptr<FakeDevice> MakeFake(const FakeDeviceOptions& options) {
  auto device = NewFakeDevice(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

using MakeDevice = std::function<std::unique_ptr<Device>()>;

class DeviceContractTest : public testing::TestWithParam<MakeDevice> {};

INSTANTIATE_TEST_SUITE_P(
    EveryDevice, DeviceContractTest,
    testing::Values([] { return NewCpuDevice(); },
                    [] { return MakeFake({.seed = 1}); },
                    [] { return MakeFake({.seed = 2, .eager_max = 0}); },
                    [] { return MakeFake({.seed = 3, .eager_max = 20}); }));

OwnedBuffer MustAllocate(Device& device, MemorySpace space, size_t bytes) {
  auto buffer = AllocateOwned(device, space, bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

TEST_P(DeviceContractTest, MemoryIsAlignedAndZeroed) {
  const auto device = GetParam()();
  const auto stream = device->NewStream();
  for (MemorySpace space : {MemorySpace::kHost, MemorySpace::kShared,
                            MemorySpace::kPinned, MemorySpace::kDevice}) {
    const OwnedBuffer buffer = MustAllocate(*device, space, 5000);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(buffer.buffer().data) % Device::kAlignment,
        0u);
    const OwnedBuffer host = MustAllocate(*device, MemorySpace::kPinned, 5000);
    std::memset(host.buffer().data, 1, 5000);
    device->Copy(host.buffer(), buffer.buffer(), *stream);
    device->Sync(*stream);
    for (size_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(host.buffer().data[i], std::byte{0}) << i;
    }
  }
}

TEST_P(DeviceContractTest, CopiesAndKernelsRunInLaunchOrder) {
  const auto device = GetParam()();
  const auto stream = device->NewStream();
  constexpr int64_t kCount = 3000;
  const size_t bytes = kCount * sizeof(float);
  const OwnedBuffer host = MustAllocate(*device, MemorySpace::kPinned, bytes);
  const OwnedBuffer x = MustAllocate(*device, MemorySpace::kDevice, bytes);
  for (int64_t i = 0; i < kCount; ++i) host.as<float>()[i] = 1.0f;
  device->Copy(x.buffer(), host.buffer(), *stream);
  for (int i = 0; i < 10; ++i) {
    Scale(*stream, x.as<float>(), 2.0f, kCount);
    Add(*stream, x.as<float>(), x.as<float>(), x.as<float>(), kCount);
  }
  device->Copy(host.buffer(), x.buffer(), *stream);
  const Event copied = device->Record(*stream);
  device->Sync(copied);
  EXPECT_TRUE(device->Query(copied));
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(host.as<float>()[i], 1048576.0f) << i;  // 4^10
  }
}

TEST_P(DeviceContractTest, AStreamWaitsForTheEventOfAnother) {
  const auto device = GetParam()();
  const auto first = device->NewStream();
  const auto second = device->NewStream();
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    first->Launch([&order, i] { order.push_back(i); });
  }
  device->WaitFor(*second, device->Record(*first));
  for (int i = 5; i < 10; ++i) {
    second->Launch([&order, i] { order.push_back(i); });
  }
  device->Sync(*second);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_P(DeviceContractTest, EventsPassInStreamOrderWithoutASync) {
  const auto device = GetParam()();
  auto* fake = dynamic_cast<FakeDevice*>(device.get());
  const auto stream = device->NewStream();
  int done = 0;
  std::vector<Event> events;
  for (int i = 0; i < 8; ++i) {
    stream->Launch([&done] { ++done; });
    events.push_back(device->Record(*stream));
  }
  for (int i = 0; i < 8; ++i) {
    while (!device->Query(events[i])) {
      if (fake != nullptr) fake->Pump(1);
    }
    EXPECT_GE(done, i + 1);
  }
  EXPECT_TRUE(device->Query(Event::kPassed));
}

TEST_P(DeviceContractTest, WorkStillQueuedRunsWhenItsStreamGoes) {
  const auto device = GetParam()();
  int done = 0;
  {
    const auto stream = device->NewStream();
    for (int i = 0; i < 5; ++i) stream->Launch([&done] { ++done; });
  }
  EXPECT_EQ(done, 5);
}

TEST(FakeDeviceTest, ResultsAreLateUntilASync) {
  const auto device = MakeFake({.seed = 1, .eager_max = 0});
  const auto stream = device->NewStream();
  const OwnedBuffer shared = MustAllocate(*device, MemorySpace::kShared, 4);
  stream->Launch([p = shared.as<int>()] { *p = 7; });
  const Event event = device->Record(*stream);
  EXPECT_EQ(*shared.as<int>(), 0);
  EXPECT_FALSE(device->Query(event));
  EXPECT_EQ(device->pending(), 1);
  device->Sync(*stream);
  EXPECT_EQ(*shared.as<int>(), 7);
  EXPECT_TRUE(device->Query(event));
}

TEST(FakeDeviceTest, EqualSeedsGiveEqualInterleavings) {
  const auto interleaving = [](uint64_t seed) {
    const auto device = MakeFake({.seed = seed});
    const auto a = device->NewStream();
    const auto b = device->NewStream();
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) {
      a->Launch([&order, i] { order.push_back(i); });
      b->Launch([&order, i] { order.push_back(100 + i); });
    }
    device->Sync(*a);
    device->Sync(*b);
    return order;
  };
  EXPECT_EQ(interleaving(5), interleaving(5));
  EXPECT_NE(interleaving(5), interleaving(6));
}

TEST(FakeDeviceTest, MemoryComesBack) {
  const auto device = MakeFake({.device_bytes = 10 * Device::kAlignment});
  std::vector<OwnedBuffer> buffers;
  for (int i = 0; i < 10; ++i) {
    buffers.push_back(MustAllocate(*device, MemorySpace::kDevice, 100));
  }
  const auto more = device->Allocate(MemorySpace::kDevice, 1);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  // Every other one, then the rest: all must join into one free range again.
  for (int i = 0; i < 10; i += 2) buffers[i] = OwnedBuffer();
  for (int i = 1; i < 10; i += 2) buffers[i] = OwnedBuffer();
  EXPECT_EQ(device->device_bytes_used(), 0u);
  MustAllocate(*device, MemorySpace::kDevice, 10 * Device::kAlignment);
}

TEST(FakeDeviceTest, AProductOnDeviceMemoryEqualsTheCpus) {
  constexpr int64_t kSize = 50;
  const auto a = RandomValues<float>(kSize * kSize, 1);
  const auto b = RandomValues<float>(kSize * kSize, 2);
  std::vector<float> expected(kSize * kSize);
  MatmulArgs<float, float> args = {.a = a.data(),
                                   .lda = kSize,
                                   .b = b.data(),
                                   .ldb = kSize,
                                   .c = expected.data(),
                                   .ldc = kSize,
                                   .m = kSize,
                                   .n = kSize,
                                   .k = kSize};
  Matmul(CpuStream(), args);

  const auto device = MakeFake({.seed = 4});
  const auto stream = device->NewStream();
  const size_t bytes = a.size() * sizeof(float);
  const OwnedBuffer on_a = MustAllocate(*device, MemorySpace::kDevice, bytes);
  const OwnedBuffer on_b = MustAllocate(*device, MemorySpace::kDevice, bytes);
  const OwnedBuffer on_c = MustAllocate(*device, MemorySpace::kDevice, bytes);
  const OwnedBuffer host_a = MustAllocate(*device, MemorySpace::kPinned, bytes);
  const OwnedBuffer host_b = MustAllocate(*device, MemorySpace::kPinned, bytes);
  std::memcpy(host_a.buffer().data, a.data(), bytes);
  std::memcpy(host_b.buffer().data, b.data(), bytes);
  device->Copy(on_a.buffer(), host_a.buffer(), *stream);
  device->Copy(on_b.buffer(), host_b.buffer(), *stream);
  args.a = on_a.as<float>();
  args.b = on_b.as<float>();
  args.c = on_c.as<float>();
  Matmul(*stream, args);
  device->Copy(host_a.buffer(), on_c.buffer(), *stream);
  device->Sync(*stream);
  EXPECT_EQ(std::memcmp(host_a.buffer().data, expected.data(), bytes), 0);
}

// A sanitizer turns the signal into its own report and exit.
TEST(FakeDeviceDeathTest, TheHostCannotReadOrWriteDeviceMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto device = MakeFake({});
  const OwnedBuffer buffer = MustAllocate(*device, MemorySpace::kDevice, 64);
  volatile int* memory = buffer.as<int>();
  EXPECT_DEATH(*memory = 1, "");
  EXPECT_DEATH(static_cast<void>(*memory), "");
}

TEST(DeviceBufferTest, PartsStayInside) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto device = NewCpuDevice();
  const OwnedBuffer buffer = MustAllocate(*device, MemorySpace::kHost, 100);
  const Buffer part = buffer.buffer().Part(40, 60);
  EXPECT_EQ(part.data, buffer.buffer().data + 40);
  EXPECT_EQ(part.bytes, 60u);
  EXPECT_DEATH(buffer.buffer().Part(40, 61), "our own bug");
}

}  // namespace
}  // namespace holdfast::kernels
