// The contract of Collectives over threads of one process, at several world
// sizes, and what only threads promise: giving up and deadlocks end in errors.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/collectives_suite.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;

class InprocCollectivesTest
    : public testing::TestWithParam<std::tuple<CollectivesCase, int>> {};

TEST_P(InprocCollectivesTest, KeepsTheContract) {
  const auto& [contract, ranks] = GetParam();
  const absl::Status status = RunInprocRanks(ranks, contract.run);
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Suite, InprocCollectivesTest,
                         testing::Combine(testing::ValuesIn(kCollectivesCases),
                                          testing::Values(1, 2, 3, 5, 8)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  "On" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(InprocCollectivesTest, MoreRanksThanTheShortPathTakesGiveTheSameBits) {
  const absl::Status status = RunInprocRanks(19, [](Collectives& world) {
    // One owner, a few owners, all of them.
    for (const size_t count : {1, 500, 5'000, 60'000}) {
      HF_RETURN_IF_ERROR(SumOf(world, count));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(InprocCollectivesTest, TheErrorOfOneRankFreesTheOthers) {
  std::vector<absl::Status> seen(4);
  const absl::Status status = RunInprocRanks(4, [&](Collectives& world) {
    seen[world.rank()] = [&]() -> absl::Status {
      HF_RETURN_IF_ERROR(world.Barrier());
      if (world.rank() == 2) return absl::DataLossError("shard 2 is damaged");
      float value = 1;
      return world.AllReduceSum(std::span<float>(&value, 1));
    }();
    return seen[world.rank()];
  });
  EXPECT_EQ(status, absl::DataLossError("shard 2 is damaged"));
  for (const int r : {0, 1, 3}) {
    EXPECT_TRUE(absl::IsAborted(seen[r])) << r << ": " << seen[r];
  }
}

TEST(InprocCollectivesTest, ARankThatLeavesIsNotWaitedFor) {
  const absl::Status status = RunInprocRanks(3, [](Collectives& world) {
    if (world.rank() == 1) return absl::OkStatus();
    return world.Barrier();
  });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST(InprocCollectivesTest, ADeadlockIsReportedWithWhoWaitsForWhom) {
  const absl::Status status =
      RunInprocRanks(2, [](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> pp,
                            world.Split(0, world.rank(), "pp"));
        int value = 0;
        HF_ASSIGN_OR_RETURN(
            const RequestId request,
            pp->Irecv(Bytes(std::span<int>(&value, 1)), 1 - world.rank(), 9));
        return pp->Wait(request);
      });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.ToString(),
              HasSubstr("rank 0 in point-to-point pp, to receive from rank 1, "
                        "tag 9; rank 1 in point-to-point pp, to receive from "
                        "rank 0, tag 9"));
}

TEST(InprocCollectivesTest, UnequalSizesOfTheTwoSidesAreAnInternalError) {
  const absl::Status status =
      RunInprocRanks(2, [](Collectives& world) -> absl::Status {
        std::vector<std::byte> data(world.rank() == 0 ? 8 : 4);
        HF_ASSIGN_OR_RETURN(const RequestId request,
                            world.rank() == 0 ? world.Isend(data, 1, 0)
                                              : world.Irecv(data, 0, 0));
        return world.Wait(request);
      });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("8 bytes sent, 4 expected"));
}

TEST(InprocCollectivesTest, TheHeartbeatSaysWhichOperationWaitsForWhom) {
  InprocWorld job(2);
  Heartbeat heartbeat;
  const std::unique_ptr<Collectives> zero = job.Join(0, &heartbeat);
  std::unique_ptr<Collectives> one = job.Join(1);
  std::thread waiting([&] { EXPECT_TRUE(zero->Barrier().ok()); });
  Heartbeat::Reading reading;
  do {
    reading = heartbeat.Read();
    std::this_thread::yield();
  } while (reading.waiting_for == Heartbeat::kNobody);
  EXPECT_EQ(reading.operation, "barrier world");
  EXPECT_EQ(reading.waiting_for, 1);
  EXPECT_TRUE(one->Barrier().ok());
  waiting.join();
  EXPECT_EQ(heartbeat.Read().operation, "");
  EXPECT_EQ(heartbeat.Read().waiting_for, Heartbeat::kNobody);
}

}  // namespace
}  // namespace holdfast::trainer
