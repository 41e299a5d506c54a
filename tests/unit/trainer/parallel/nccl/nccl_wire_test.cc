// The NCCL wire's own code over a CUDA runtime and an NCCL of the tests' own:
// what goes where, in which order, and what happens when NCCL does not come
// back. That NCCL moves bytes is for a machine with GPUs.

#include "trainer/parallel/nccl_wire.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_device.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"
#include "tests/unit/trainer/parallel/nccl/nccl_fake.h"

namespace holdfast::trainer {

extern "C" const CollectivesPluginEntry* holdfast_collectives_plugin();

namespace {

using kernels::MemorySpace;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Transfer = DeviceWire::Transfer;

constexpr size_t kBytes = 100;

class Names final : public WaitNames {
 public:
  void Begin(std::string_view operation) override {
    begun.emplace_back(operation);
    ++open;
  }
  void End() override { --open; }
  std::vector<std::string> begun;
  int open = 0;
};

class NcclWireTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = kernels::OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->NewStream();
    id_ = *Entry().make_id();
    lane_id_ = *Entry().make_id();
  }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    if (left_behind_) kernels::Fake().TakeBackTheRest();
    kernels::ResetFake();
    ResetNccl();
  }
  static const CollectivesPluginEntry& Entry() {
    return *holdfast_collectives_plugin();
  }
  std::unique_ptr<NcclJob> Job(int rank, int timeout_ms = 60'000) {
    auto job =
        Entry().open_job({.where = "rank " + std::to_string(rank) + " on n017",
                          .timeout_ms = timeout_ms,
                          .device = device_.get(),
                          .names = &names_});
    EXPECT_TRUE(job.ok()) << job.status();
    return *std::move(job);
  }
  // One of two ranks, with a lane of tag 7 to the other.
  NcclJob::WireOptions Options(int rank) {
    return {.name = "pp",
            .rank = rank,
            .size = 2,
            .id = id_,
            .lanes = {{.peer = 1 - rank, .tag = 7, .id = lane_id_}}};
  }
  kernels::OwnedBuffer Memory() {
    return *kernels::AllocateOwned(*device_, MemorySpace::kDevice, kBytes);
  }
  static std::span<std::byte> In(const kernels::OwnedBuffer& memory) {
    return {memory.buffer().data, memory.buffer().bytes};
  }

  Names names_;
  std::unique_ptr<kernels::CudaDevice> device_;
  std::unique_ptr<kernels::Stream> stream_;
  NcclId id_, lane_id_;
  bool left_behind_ = false;  // What a device holds, on purpose.
};

TEST_F(NcclWireTest, MessagesTravelInTheGroupAndInLanesOfTheirOwn) {
  const auto first_job = Job(0), second_job = Job(1);
  {
    auto first = first_job->OpenWire(Options(0));
    auto second = second_job->OpenWire(Options(1));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(Nccl().opened, 4);
    EXPECT_THAT(Nccl().max_ctas, ElementsAre(32, 4, 32, 4))
        << "what waits must fit on a GPU side by side";
    for (const int tag : {DeviceWire::kGroup, 7}) {
      const kernels::OwnedBuffer from = Memory(), to = Memory();
      std::fill_n(from.buffer().data, kBytes, std::byte{42});
      const Transfer send{Transfer::Kind::kSend, In(from), 1};
      const Transfer receive{Transfer::Kind::kReceive, In(to), 0};
      Nccl().calls.clear();
      const auto sent = (*first)->Begin({&send, 1}, tag, *stream_);
      const auto received = (*second)->Begin({&receive, 1}, tag, *stream_);
      ASSERT_TRUE(sent.ok() && received.ok());
      EXPECT_THAT(Nccl().calls, ElementsAre("send 1 100", "receive 0 100"));
      EXPECT_TRUE((*first)->End(*sent, *stream_).ok());
      EXPECT_EQ(to.buffer().data[0], std::byte{0}) << "nothing waits here";
      EXPECT_TRUE((*second)->End(*received, *stream_).ok());
      device_->Sync(*stream_);
      EXPECT_TRUE(std::equal(from.buffer().data, from.buffer().data + kBytes,
                             to.buffer().data));
    }
  }
  EXPECT_EQ(Nccl().destroyed, 4);
}

TEST_F(NcclWireTest, AGatherIsABroadcastOfEveryPartThatIsThere) {
  const auto job = Job(0);
  auto wire = job->OpenWire(Options(0));
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer all = Memory();
  const std::vector<int64_t> first = {0, 60}, count = {50, 40}, none = {50, 0};
  EXPECT_TRUE((*wire)->AllGatherV(In(all), first, count, *stream_).ok());
  EXPECT_TRUE((*wire)->AllGatherV(In(all), first, none, *stream_).ok());
  EXPECT_THAT(Nccl().calls, ElementsAre("broadcast 0 50", "broadcast 1 40",
                                        "broadcast 0 50"));
  device_->Sync(*stream_);
}

TEST_F(NcclWireTest, WhoDoesNotComeToTheSettingUpIsMissedInTime) {
  Nccl().in_progress = -1;
  const auto job = Job(3, /*timeout_ms=*/30);
  NcclJob::WireOptions options = Options(0);
  options.name = "dp";
  const auto wire = job->OpenWire(options);
  EXPECT_EQ(wire.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(wire.status().message()),
              AllOf(HasSubstr("rank 3 on n017"), HasSubstr("setting up dp"),
                    HasSubstr("30 ms")));
  EXPECT_THAT(names_.begun, ElementsAre("NCCL: setting up dp"));
  EXPECT_EQ(names_.open, 0);
  EXPECT_EQ(Nccl().aborted, 1);
}

TEST_F(NcclWireTest, AnErrorOfNcclEndsTheWaitAbortsAllAndStays) {
  const auto job = Job(1);
  auto wire = job->OpenWire(Options(1));
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer memory = Memory();
  const Transfer send{Transfer::Kind::kSend, In(memory), 0};
  const auto sent = (*wire)->Begin({&send, 1}, 7, *stream_);
  ASSERT_TRUE(sent.ok());
  ASSERT_TRUE((*wire)->End(*sent, *stream_).ok());
  // A peer that is gone: the message stands until it is aborted.
  kernels::Fake().stuck = true;
  int asked = 0;
  Nccl().on_ask = [&] {
    if (++asked <= 3) return;
    Nccl().async_error = 6;  // ncclRemoteError
    kernels::Fake().stuck = false;
  };
  const absl::Status status = (*wire)->Sync(*stream_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 on n017"), HasSubstr("work of pp"),
                    HasSubstr("its last words")));
  EXPECT_THAT(
      names_.begun,
      testing::Contains(HasSubstr("a message of pp, tag 7 with rank 0")));
  EXPECT_EQ(names_.open, 0);
  EXPECT_EQ(Nccl().aborted, 2);
  EXPECT_THAT(Nccl().aborts_in_group, ElementsAre(2)) << "all at once";
  EXPECT_EQ((*wire)->Begin({&send, 1}, 7, *stream_).status(), status);
  EXPECT_EQ((*wire)->Sync(*stream_), status);
  device_->Sync(*stream_);
}

// Else freeing memory would wait for a peer that may never come.
TEST_F(NcclWireTest, AMessageThatIsAbandonedAbortsAll) {
  const auto job = Job(1);
  auto wire = job->OpenWire(Options(1));
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer memory = Memory();
  const Transfer send{Transfer::Kind::kSend, In(memory), 0};
  const auto sent = (*wire)->Begin({&send, 1}, 7, *stream_);
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(Nccl().aborted, 0);
  (*wire)->Abandon(*sent, *stream_);
  EXPECT_EQ(Nccl().aborted, 2);
  EXPECT_EQ((*wire)->Sync(*stream_).code(), absl::StatusCode::kAborted);
  device_->Sync(*stream_);
}

TEST_F(NcclWireTest, AWaitForTheDeviceThatNobodyBeganByTheWireAsksNcclToo) {
  const auto job = Job(1);
  auto wire = job->OpenWire(Options(1));
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer memory = Memory();
  const Transfer send{Transfer::Kind::kSend, In(memory), 0};
  const auto sent = (*wire)->Begin({&send, 1}, 7, *stream_);
  ASSERT_TRUE(sent.ok());
  ASSERT_TRUE((*wire)->End(*sent, *stream_).ok());
  kernels::Fake().stuck = true;
  Nccl().on_ask = [] {
    Nccl().async_error = 6;
    kernels::Fake().stuck = false;
  };
  device_->Sync(device_->Record(*stream_));
  EXPECT_EQ(Nccl().aborted, 2);
  EXPECT_THAT(
      names_.begun,
      testing::Contains(HasSubstr("NCCL: a message of pp, tag 7 with rank 0")));
  EXPECT_EQ(names_.open, 0);
  EXPECT_TRUE(device_->status().ok()) << "the kernels have ended";
  EXPECT_EQ((*wire)->Sync(*stream_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclWireTest, ARankThatGivesUpAbortsAllAndSaysWhyEverAfter) {
  const auto job = Job(0);
  auto wire = job->OpenWire(Options(0));
  ASSERT_TRUE(wire.ok());
  const absl::Status why = absl::DataLossError("the data file is short");
  job->GiveUp(why);
  EXPECT_THAT(Nccl().aborts_in_group, ElementsAre(2));
  EXPECT_EQ((*wire)->Sync(*stream_), why);
  job->GiveUp(absl::InternalError("later"));
  EXPECT_EQ((*wire)->Sync(*stream_), why);
}

TEST_F(NcclWireTest, AnAbortThatDoesNotComeBackFailsTheDeviceAndNothingWaits) {
  const auto job = Job(0, /*timeout_ms=*/50);
  auto wire = job->OpenWire(Options(0));
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer memory = Memory();
  const Transfer send{Transfer::Kind::kSend, In(memory), 1};
  const auto sent = (*wire)->Begin({&send, 1}, 7, *stream_);
  ASSERT_TRUE(sent.ok());
  ASSERT_TRUE((*wire)->End(*sent, *stream_).ok());
  kernels::Fake().stuck = true;
  Nccl().abort_hangs = true;
  device_->SetWaitLimit(std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  job->GiveUp(absl::UnavailableError("a peer is gone"));
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("NCCL's communicators did not end within 50 ms"));
  wire->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  EXPECT_GE(kernels::Fake().ends_without_teardown, 1);
  EXPECT_GT(kernels::Fake().streams, 2) << "the lanes' streams are left";
  // Here the process would end. The books of the test:
  Nccl().abort_hangs = false;
  while (!Nccl().abort_groups_over) std::this_thread::yield();
  kernels::Fake().stuck = false;
  left_behind_ = true;
}

TEST_F(NcclWireTest, AnAbortThatNcclRefusesFailsTheDevice) {
  const auto job = Job(0);
  auto wire = job->OpenWire(Options(0));
  ASSERT_TRUE(wire.ok());
  Nccl().abort_result = 1;  // ncclUnhandledCudaError
  job->GiveUp(absl::UnavailableError("a peer is gone"));
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("ending NCCL's communicators: an error of the fake"));
}

TEST_F(NcclWireTest, WhoCannotLeaveInTimeAborts) {
  const auto job = Job(0, /*timeout_ms=*/30);
  auto wire = job->OpenWire(Options(0));
  ASSERT_TRUE(wire.ok());
  Nccl().finalizes = false;
  wire->reset();
  EXPECT_EQ(Nccl().destroyed, 0);
  EXPECT_THAT(Nccl().aborts_in_group, ElementsAre(2));
  EXPECT_THAT(names_.begun, testing::Contains(HasSubstr("NCCL: leaving pp")));
  EXPECT_EQ(names_.open, 0);
}

TEST_F(NcclWireTest, AGatherOfMoreRanksThanAGroupTakesIsSeveralGroups) {
  const auto job = Job(0);
  auto wire = job->OpenWire({.name = "dp", .rank = 0, .size = 5000, .id = id_});
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer all = Memory();
  const std::vector<int64_t> first(5000, 0), count(5000, 1);
  Nccl().groups = 0;
  EXPECT_TRUE((*wire)->AllGatherV(In(all), first, count, *stream_).ok());
  EXPECT_EQ(Nccl().groups, 3);
  EXPECT_EQ(Nccl().calls.size(), 5000u);
  device_->Sync(*stream_);
}

TEST_F(NcclWireTest, MoreMessagesAtOnceThanAGroupTakesAreRefused) {
  const auto job = Job(0);
  auto wire = job->OpenWire({.name = "dp", .rank = 0, .size = 5000, .id = id_});
  ASSERT_TRUE(wire.ok());
  const kernels::OwnedBuffer memory = Memory();
  Nccl().calls.clear();
  const std::vector<Transfer> most(2048,
                                   {Transfer::Kind::kSend, In(memory), 1});
  const auto begun = (*wire)->Begin(most, DeviceWire::kGroup, *stream_);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE((*wire)->End(*begun, *stream_).ok());
  const std::vector<Transfer> more(2049, most[0]);
  const absl::Status refused =
      (*wire)->Begin(more, DeviceWire::kGroup, *stream_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("2049 messages at once in dp, of 5000 ranks"),
                    HasSubstr("NCCL takes 2048")));
  EXPECT_EQ(Nccl().calls.size(), 2048u);
  device_->Sync(*stream_);
}

}  // namespace
}  // namespace holdfast::trainer
