// The CUDA device over a runtime that runs late, has little memory and fails
// when asked (fake_cudart.h): what the device promises that no GPU is needed
// for.

#include "kernels/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_driver.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"

namespace holdfast::kernels {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    ResetFake();
  }
  void Open() {
    auto device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->NewStream();
  }
  OwnedBuffer Memory(MemorySpace space, size_t bytes) {
    auto buffer = AllocateOwned(*device_, space, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  cudaStream_t handle() {
    return static_cast<CudaStream*>(stream_.get())->handle();
  }
  std::string Error() { return std::string(device_->status().message()); }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaDeviceTest, MemoryOfEverySpaceIsAlignedAndZero) {
  for (const MemorySpace space : {MemorySpace::kHost, MemorySpace::kShared,
                                  MemorySpace::kPinned, MemorySpace::kDevice}) {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{4096}, size_t{5000}, size_t{3} << 20}) {
      const OwnedBuffer memory = Memory(space, bytes);
      EXPECT_EQ(memory.buffer().bytes, bytes);
      EXPECT_EQ(memory.buffer().space, space);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.buffer().data) %
                    Device::kAlignment,
                0u);
      const std::byte* const data = memory.buffer().data;
      EXPECT_TRUE(std::all_of(data, data + bytes, [](std::byte value) {
        return value == std::byte{0};
      }));
      const bool registered =
          space == MemorySpace::kShared || space == MemorySpace::kPinned;
      EXPECT_EQ(Fake().registered.size(), registered ? 1u : 0u);
    }
  }
}

TEST_F(CudaDeviceTest, MoreMemoryThanThereIsIsRefusedInNumbersAndForgotten) {
  const OwnedBuffer some = Memory(MemorySpace::kDevice, 16 << 20);
  const absl::Status refused =
      device_->Allocate(MemorySpace::kDevice, 60 << 20).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("allocating 62914560 bytes"),
                    HasSubstr("GPU 0 (a fake GPU)"), HasSubstr("out of memory"),
                    HasSubstr("of 67108864 bytes are free")));
  EXPECT_TRUE(device_->status().ok());
  device_->CheckLaunch("a later launch");
  EXPECT_TRUE(device_->status().ok()) << "the refusal is not found again";
}

TEST_F(CudaDeviceTest, MemoryThatCannotBePinnedIsRefusedAndGivenBack) {
  Fake().fail_next["cudaHostRegister"] = cudaErrorMemoryAllocation;
  const absl::Status refused =
      device_->Allocate(MemorySpace::kPinned, 5000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("pinning 5000 bytes"));
  EXPECT_TRUE(device_->status().ok());
}

TEST_F(CudaDeviceTest, CopiesRunInOrderAndNotBeforeTheyAreWaitedFor) {
  const OwnedBuffer from = Memory(MemorySpace::kPinned, 8192);
  const OwnedBuffer on = Memory(MemorySpace::kDevice, 8192);
  const OwnedBuffer back = Memory(MemorySpace::kPinned, 8192);
  std::memset(from.buffer().data, 7, 8192);
  device_->Copy(on.buffer(), from.buffer(), *stream_);
  device_->Copy(back.buffer(), on.buffer(), *stream_);
  EXPECT_EQ(back.buffer().data[0], std::byte{0});
  device_->Sync(*stream_);
  EXPECT_EQ(std::memcmp(back.buffer().data, from.buffer().data, 8192), 0);
  EXPECT_TRUE(device_->status().ok()) << device_->status();
}

TEST_F(CudaDeviceTest, AnEventPassesWithWhatWasBeforeIt) {
  int ran = 0;
  Fake().Enqueue(handle(), [&] { ran = 1; });
  const Event first = device_->Record(*stream_);
  Fake().Enqueue(handle(), [&] { ran = 2; });
  const Event second = device_->Record(*stream_);
  EXPECT_FALSE(device_->Query(first));
  device_->Sync(first);
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(device_->Query(first));
  EXPECT_FALSE(device_->Query(second));
  device_->Sync(*stream_);
  EXPECT_TRUE(device_->Query(second));
  EXPECT_TRUE(device_->Query(first));
  EXPECT_TRUE(device_->Query(Event::kPassed));
}

TEST_F(CudaDeviceTest, AStreamWaitsForAnotherOnesEvent) {
  std::vector<int> order;
  const auto side = device_->NewStream();
  Fake().Enqueue(handle(), [&] { order.push_back(1); });
  const Event event = device_->Record(*stream_);
  device_->WaitFor(*side, event);
  Fake().Enqueue(static_cast<CudaStream*>(side.get())->handle(),
                 [&] { order.push_back(2); });
  device_->Sync(*side);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  device_->Sync(*stream_);
}

TEST_F(CudaDeviceTest, EventsAreUsedAgain) {
  for (int i = 0; i < 1000; ++i) {
    Fake().Enqueue(handle(), [] {});
    const Event event = device_->Record(*stream_);
    if (i % 3 == 0) device_->Sync(event);
    if (i % 10 == 9) device_->Sync(*stream_);
  }
  device_->Sync(*stream_);
  EXPECT_LE(Fake().events_made, 12);
}

TEST_F(CudaDeviceTest, TheFirstErrorStaysWithTheOperationsName) {
  device_->Copy(Buffer{}, Buffer{}, *stream_);
  static_cast<CudaStream*>(stream_.get())->set_last_operation("RmsNormForward");
  Fake().fault = cudaErrorIllegalAddress;
  EXPECT_TRUE(device_->status().ok()) << "nobody has waited yet";
  device_->Sync(*stream_);
  EXPECT_EQ(device_->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Error(), AllOf(HasSubstr("GPU 0 (a fake GPU)"),
                             HasSubstr("last operation was RmsNormForward"),
                             HasSubstr("illegal memory access"),
                             HasSubstr("results mean nothing")));
  const std::string first = Error();
  device_->Fail("something later");
  EXPECT_EQ(Error(), first);
}

TEST_F(CudaDeviceTest, AfterAnErrorNothingIsWaitedFor) {
  // The stream runs it when it goes, after this test's own variables.
  const auto ran = std::make_shared<bool>(false);
  device_->Fail("a product");
  Fake().Enqueue(handle(), [ran] { *ran = true; });
  const Event event = device_->Record(*stream_);
  device_->Sync(event);
  device_->Sync(*stream_);
  EXPECT_TRUE(device_->Query(event));
  EXPECT_FALSE(*ran);
}

TEST_F(CudaDeviceTest, EveryRefusedCallBecomesTheDevicesError) {
  const OwnedBuffer a = Memory(MemorySpace::kDevice, 100);
  const OwnedBuffer b = Memory(MemorySpace::kPinned, 100);
  Fake().fail_next["cudaMemcpyAsync"] = cudaErrorIllegalAddress;
  device_->Copy(a.buffer(), b.buffer(), *stream_);
  EXPECT_THAT(Error(), HasSubstr("copying 100 bytes from pinned to device"));
}

TEST_F(CudaDeviceTest, AnEventThatCannotBeRecordedFailsTheDevice) {
  Fake().fail_next["cudaEventRecord"] = cudaErrorIllegalAddress;
  EXPECT_EQ(device_->Record(*stream_), Event::kPassed);
  EXPECT_THAT(Error(), HasSubstr("recording an event"));
}

TEST_F(CudaDeviceTest, ALaunchThatWasRefusedIsNamed) {
  Fake().fail_next["cudaMalloc"] =
      cudaErrorIllegalAddress;  // any error will do
  void* memory = nullptr;
  cudaMalloc(&memory, 1);
  device_->CheckLaunch("AdamW");
  EXPECT_THAT(Error(), HasSubstr("AdamW: an illegal memory access"));
}

TEST_F(CudaDeviceTest, AnEventThatHasNotPassedIsNoErrorOfTheNextLaunch) {
  Fake().Enqueue(handle(), [] {});
  const Event first = device_->Record(*stream_);
  Fake().Enqueue(handle(), [] {});
  const Event second = device_->Record(*stream_);  // looks whether one is free
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_FALSE(device_->Query(first));
  EXPECT_FALSE(device_->Query(second));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const auto side = device_->NewCudaStream(CudaPriority::kHigh);
  cudaEvent_t event = nullptr;  // a library's own
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, handle());
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  device_->CheckLaunch("a launch after it");
  EXPECT_TRUE(device_->status().ok()) << device_->status();
  device_->Sync(*stream_);
  cudaEventDestroy(event);
}

TEST_F(CudaDeviceTest, ScratchIsTheDevicesAndGoesAfterTheWorkThatUsesIt) {
  auto* const stream = static_cast<CudaStream*>(stream_.get());
  char* const small = stream->Scratch<char>(1000);
  ASSERT_NE(small, nullptr);
  Fake().Enqueue(handle(), [=] { std::memset(small, 1, 1000); });
  ASSERT_NE(stream->Scratch<char>(5000), nullptr);
  EXPECT_EQ(Fake().device_memory.size(), 2u) << "the old is in use until then";
  device_->Sync(*stream_);
  EXPECT_EQ(Fake().device_memory.size(), 1u);
  stream->set_last_operation("AttentionBackward");
  EXPECT_EQ(stream->Scratch<char>(100 << 20), nullptr);
  EXPECT_THAT(Error(), HasSubstr("AttentionBackward needs 104857600 bytes of "
                                 "scratch: out of memory"));
}

TEST_F(CudaDeviceTest, EveryThreadMakesTheDeviceItsOwn) {
  Fake().current.clear();
  std::thread other([&] { device_->Sync(*stream_); });
  other.join();
  EXPECT_FALSE(Fake().current.empty());
  EXPECT_THAT(Fake().current, Each(0));
}

// Hears of waits, and may end one.
class Listener final : public WaitListener {
 public:
  void OnWaiting(std::string_view what) override {
    heard.emplace_back(what);
    if (on_waiting) on_waiting();
  }
  void OnWaitOver() override { ++over; }
  std::vector<std::string> heard;
  int over = 0;
  std::function<void()> on_waiting;
};

class CudaWaitTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    device_->SetWaitLimit(std::chrono::milliseconds(40));
    device_->AddWaitListener(&listener_);
    cuda_stream().set_last_operation("AttentionForward");
  }
  // The hanging kernel ends when the test has seen what it wanted.
  void TearDown() override {
    Fake().stuck = false;
    CudaDeviceTest::TearDown();
  }
  CudaStream& cuda_stream() { return static_cast<CudaStream&>(*stream_); }
  Event Hang() {
    Fake().stuck = true;
    Fake().Enqueue(handle(), [] {});
    return device_->Record(*stream_);
  }
  Listener listener_;
};

TEST_F(CudaWaitTest, AHangingKernelEndsTheWaitForAnEventWithItsName) {
  const Event event = Hang();
  device_->Sync(event);
  EXPECT_EQ(device_->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Error(), AllOf(HasSubstr("work up to AttentionForward was not "
                                       "over after 1 s"),
                             HasSubstr("a kernel hangs")));
  EXPECT_FALSE(listener_.heard.empty());
  EXPECT_THAT(listener_.heard, Each("work up to AttentionForward"));
  EXPECT_EQ(listener_.over, 1);
}

TEST_F(CudaWaitTest, AHangingKernelEndsTheWaitForAStreamWithItsName) {
  Hang();
  device_->Sync(*stream_);
  EXPECT_THAT(Error(), HasSubstr("work up to AttentionForward was not over"));
  EXPECT_EQ(listener_.over, 1);
}

TEST_F(CudaWaitTest, AListenerThatFailsTheDeviceEndsTheWait) {
  device_->SetWaitLimit(std::chrono::minutes(5));
  listener_.on_waiting = [&] { device_->Fail("a peer is gone"); };
  device_->Sync(Hang());
  EXPECT_THAT(Error(), HasSubstr("a peer is gone"));
  EXPECT_EQ(listener_.heard.size(), 1u);
  EXPECT_EQ(listener_.over, 1);
  device_->SetWaitLimit(std::chrono::milliseconds(40));
}

TEST_F(CudaWaitTest, OnlyTheThreadThatAskedHears) {
  const Event event = Hang();
  std::thread other([&] { device_->Sync(event); });
  other.join();
  EXPECT_FALSE(device_->status().ok());
  EXPECT_TRUE(listener_.heard.empty());
}

TEST_F(CudaWaitTest, ListenersThatWereRemovedHearNothing) {
  device_->RemoveWaitListener(&listener_);
  device_->Sync(Hang());
  EXPECT_FALSE(device_->status().ok());
  EXPECT_TRUE(listener_.heard.empty());
}

TEST_F(CudaWaitTest, MemoryThatAHangingGpuMayUseIsNeitherFreedNorUnpinned) {
  std::optional<OwnedBuffer> pinned = Memory(MemorySpace::kPinned, 8192);
  std::optional<OwnedBuffer> on = Memory(MemorySpace::kDevice, 8192);
  std::byte* const data = pinned->buffer().data;
  Hang();
  pinned.reset();
  EXPECT_THAT(Error(), HasSubstr("was not over after"));
  on.reset();
  EXPECT_EQ(Fake().registered.size(), 1u);
  EXPECT_EQ(Fake().device_memory.size(), 1u);
  EXPECT_EQ(Fake().ends_without_teardown, 1);
  data[0] = std::byte{1};  // A copy under way may still do this.
  // What follows is the end of the process, in which a test's own books must
  // balance.
  Fake().registered.clear();
  std::free(data);
  stream_.reset();
  device_.reset();
  EXPECT_EQ(Fake().streams, 2) << "its own, and the one that hangs";
  Fake().TakeBackTheRest();
}

TEST_F(CudaWaitTest, AStreamThatHangsIsLeftWithItsScratch) {
  ASSERT_NE(cuda_stream().Scratch<char>(1000), nullptr);
  Hang();
  const auto start = std::chrono::steady_clock::now();
  stream_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(Error(), HasSubstr("was not over after"));
  EXPECT_EQ(Fake().device_memory.size(), 1u);
  EXPECT_EQ(Fake().streams, 2);
  device_.reset();
  Fake().TakeBackTheRest();
}

TEST_F(CudaWaitTest, AGpuThatEndsAfterItsFailureGetsEverythingBack) {
  device_->SetWaitLimit(std::chrono::minutes(1));
  std::optional<OwnedBuffer> pinned = Memory(MemorySpace::kPinned, 8192);
  device_->Fail("something on the host");
  Fake().Enqueue(handle(), [] {});
  pinned.reset();
  EXPECT_TRUE(Fake().registered.empty());
  EXPECT_EQ(Fake().ends_without_teardown, 0);
}

using CudaDeviceDeathTest = CudaDeviceTest;

TEST_F(CudaDeviceDeathTest, ForeignMemoryAndStreamsAreOurOwnBug) {
  std::byte other[64];
  EXPECT_DEATH(device_->Free({MemorySpace::kDevice, other, 64}),
               "not allocated");
  EXPECT_DEATH(device_->Copy({MemorySpace::kHost, other, 64},
                             {MemorySpace::kHost, other, 32}, *stream_),
               "copying 32 bytes to 64");
  EXPECT_DEATH(device_->Sync(CpuStream()), "a stream of another device");
}

TEST_F(CudaDeviceTest, ClosingAStreamWithALibrarysStateWaitsForTheWholeGpu) {
  const auto side = device_->NewCudaStream(CudaPriority::kNormal);
  bool ran = false;
  Fake().Enqueue(side->handle(), [&] { ran = true; });
  static_cast<CudaStream&>(*stream_).library_state() = std::make_shared<int>(7);
  stream_.reset();
  EXPECT_TRUE(ran) << "the library's own wait would have no end";
}

class CudaOpenTest : public ::testing::Test {
 protected:
  void TearDown() override { ResetFake(); }
};

TEST_F(CudaOpenTest, WhatIsThereIsDescribed) {
  Fake().devices = 2;
  const auto info = CudaDeviceInfo(1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->name, "a fake GPU");
  EXPECT_EQ(info->bus, "0000:01:00.0");
  EXPECT_EQ(info->multiprocessors, 132);
  EXPECT_EQ(info->bytes_total, 64 << 20);
  EXPECT_EQ(*CudaDriver(), "CUDA 13.0, driver for 13.0");
  EXPECT_EQ(*CudaDeviceCount(), 2);
  EXPECT_EQ(OpenCudaDevice(2).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaOpenTest, WhatIsMissingIsSaid) {
  Fake().driver = 0;
  EXPECT_THAT(std::string(OpenCudaDevice(0).status().message()),
              HasSubstr("no NVIDIA driver on "));
  Fake().driver = 12040;
  EXPECT_THAT(std::string(OpenCudaDevice(0).status().message()),
              HasSubstr("too old: it supports CUDA 12.4"));
  Fake().driver = 13000;
  Fake().devices = 0;
  EXPECT_THAT(std::string(OpenCudaDevice(0).status().message()),
              HasSubstr("shows no GPU"));
  Fake().devices = 1;
  Fake().capability_major = 8;
  EXPECT_THAT(std::string(OpenCudaDevice(0).status().message()),
              HasSubstr("compute capability 8.0"));
  Fake().capability_major = 9;
  Fake().fail_next["cudaGetDeviceProperties"] = cudaErrorIllegalAddress;
  EXPECT_EQ(OpenCudaDevice(0).status().code(), absl::StatusCode::kUnavailable);
  Fake().fail_next["cudaDeviceGetAttribute"] = cudaErrorIllegalAddress;
  EXPECT_THAT(std::string(OpenCudaDevice(0).status().message()),
              HasSubstr("what it can do: an illegal memory access"));
  EXPECT_TRUE(OpenCudaDevice(0).ok());
}

TEST_F(CudaOpenTest, AGpuThatCannotReachPinnedMemoryAtItsAddressIsRefused) {
  const std::pair<cudaDeviceAttr, const char*> lacking[] = {
      {cudaDevAttrCanUseHostPointerForRegisteredMem,
       "cannot reach pinned memory at the host's address"},
      {cudaDevAttrHostRegisterSupported, "cannot pin memory"},
      {cudaDevAttrMemoryPoolsSupported, "has no memory pools"}};
  for (const auto& [attribute, words] : lacking) {
    Fake().lacks = {attribute};
    const absl::Status refused = OpenCudaDevice(0).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("a fake GPU"), HasSubstr(words)));
  }
}

}  // namespace
}  // namespace holdfast::kernels
