// Several ranks convert together: each its share of the rounds, one result.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/group/inproc_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::SmallLayout;

constexpr int kRanks = 3;

class ConvertRanksTest : public ::testing::Test {
 protected:
  ConvertRanksTest() {
    tests::SaveBare(dir_.path(), "saved", *SmallLayout(2, 1, 2));
  }

  // By rank. `outs` is the directory that each is told.
  std::vector<absl::StatusOr<WriteCheckpointReport>> Convert(
      const std::vector<std::string>& outs, Codec codec = Codec::kNone) {
    auto groups = MakeInprocGroups(kRanks);
    std::vector<absl::StatusOr<WriteCheckpointReport>> reports(
        kRanks, absl::UnknownError("not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto source =
            CheckpointSource::Open(dir_.path() + "/saved", {}, RealClock());
        ASSERT_TRUE(source.ok()) << source.status();
        WriteCheckpointOptions options;
        options.out = outs[rank];
        options.step = 300;
        options.threads = 2;
        options.codec = codec;
        options.window_bytes = 64 << 10;
        options.round_bytes = 128 << 10;
        options.group = groups[rank].get();
        reports[rank] = WriteCheckpoint(source->get(), *SmallLayout(4, 1, 3),
                                        options, RealClock());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return reports;
  }

  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }

  tests::TempDir dir_{tests::MemoryFolder()};
};

TEST_F(ConvertRanksTest, EachWritesItsShareAndTheResultIsOne) {
  const std::vector<std::string> outs(kRanks, Path("out"));
  const auto reports = Convert(outs);
  for (const auto& report : reports)
    ASSERT_TRUE(report.ok()) << report.status();
  const auto source = CheckpointSource::Open(Path("saved"), {}, RealClock());
  const auto made = CheckpointSource::Open(Path("out"), {}, RealClock());
  ASSERT_TRUE(source.ok() && made.ok());
  EXPECT_EQ(reports[0]->item_digests,
            std::vector<Digest128>((*source)->recorded_digests().begin(),
                                   (*source)->recorded_digests().end()));
  // Not all of it was read by rank 0.
  EXPECT_LT(reports[0]->bytes_read, reports[0]->bytes_state);
  // Again, together: there is nothing to do but to verify.
  for (const auto& report : Convert(outs)) {
    ASSERT_TRUE(report.ok()) << report.status();
  }
}

TEST_F(ConvertRanksTest, OneThatSeesAnotherDirectoryStopsAll) {
  // The same conversion begun elsewhere: another run id.
  auto source = CheckpointSource::Open(Path("saved"), {}, RealClock());
  ASSERT_TRUE(source.ok()) << source.status();
  const std::atomic<bool> stop = true;
  WriteCheckpointOptions options;
  options.out = Path("other");
  options.step = 300;
  options.window_bytes = 64 << 10;
  options.round_bytes = 128 << 10;
  options.stop = &stop;
  ASSERT_FALSE(WriteCheckpoint(source->get(), *SmallLayout(4, 1, 3), options,
                               RealClock())
                   .ok());
  const auto reports = Convert({Path("out"), Path("out"), Path("other")});
  for (const auto& report : reports) EXPECT_FALSE(report.ok());
  EXPECT_THAT(std::string(reports[0].status().message()),
              HasSubstr("rank 2 on"));
  EXPECT_THAT(std::string(reports[0].status().message()),
              HasSubstr("sees another directory"));
  // The others' work is kept, and without the mistake it goes on.
  const auto again = Convert(std::vector<std::string>(kRanks, Path("out")));
  for (const auto& report : again) ASSERT_TRUE(report.ok()) << report.status();
}

TEST_F(ConvertRanksTest, RankZerosRefusalIsEverybodys) {
  const auto reports = Convert(std::vector<std::string>(kRanks, Path("saved")));
  for (const auto& report : reports) {
    EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  }
  for (const auto& report :
       Convert(std::vector<std::string>(kRanks, Path("out")), Codec::kZstd)) {
    EXPECT_EQ(report.status().code(), absl::StatusCode::kUnimplemented);
  }
}

// What all ranks find wrong before they begin is said once.
TEST_F(ConvertRanksTest, ARefusalIsHeardByWhoRefusesTooAndByWhoHasBegun) {
  auto groups = MakeInprocGroups(kRanks);
  bool told = false;
  bool heard = false;
  absl::Status began;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    told = TellRefusal(groups[0].get(), absl::NotFoundError("no such run"),
                       RealClock());
  });
  threads.emplace_back(
      [&] { heard = HearRefusal(groups[1].get(), RealClock()); });
  threads.emplace_back([&] {
    auto source =
        CheckpointSource::Open(dir_.path() + "/saved", {}, RealClock());
    ASSERT_TRUE(source.ok()) << source.status();
    WriteCheckpointOptions options;
    options.out = Path("out");
    options.group = groups[2].get();
    began = WriteCheckpoint(source->get(), *SmallLayout(4, 1, 3), options,
                            RealClock())
                .status();
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(told);
  EXPECT_TRUE(heard);
  EXPECT_EQ(began, absl::NotFoundError("no such run"));
}

TEST_F(ConvertRanksTest, ARankThatRefusesAloneSpeaksForItself) {
  auto groups = MakeInprocGroups(2);
  std::atomic<bool> stop = false;
  std::thread leader([&] {
    auto source =
        CheckpointSource::Open(dir_.path() + "/saved", {}, RealClock());
    ASSERT_TRUE(source.ok()) << source.status();
    WriteCheckpointOptions options;
    options.out = Path("out");
    options.step = 300;
    options.stop = &stop;
    options.group = groups[0].get();
    EXPECT_FALSE(WriteCheckpoint(source->get(), *SmallLayout(4, 1, 3), options,
                                 RealClock())
                     .ok());
  });
  EXPECT_FALSE(HearRefusal(groups[1].get(), RealClock()));
  stop = true;
  leader.join();
}

}  // namespace
}  // namespace holdfast::ckpt
