// Four ranks are threads of this process, over a real directory. An optimizer
// goes through the state while it is being saved, through FenceWrite; what is
// loaded afterwards must be the state at BeginSave, to the bit, on as many
// ranks and on others.

#include "ckpt/checkpointer.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/group/inproc_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/party.h"
#include "tests/support/sim_layout.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::Finish;
using tests::OnRanks;
using tests::Party;
using tests::SimLayout;
using tests::TempDir;

class CheckpointerTest : public testing::TestWithParam<const char*> {
 protected:
  CheckpointerOptions Options() const {
    CheckpointerOptions options;
    options.run_dir = dir_.path();
    options.storage = GetParam();
    // A store without the fence dies, or fails the save.
    options.protect_unreleased = true;
    options.recheck_after_write = true;
    // Far beyond what a loaded machine takes, far below a test's patience.
    options.fence_ms = 20'000;
    return options;
  }
  TempDir dir_;
};

INSTANTIATE_TEST_SUITE_P(Storages, CheckpointerTest,
                         testing::Values("posix", "auto"),
                         [](const auto& info) { return info.param; });

TEST_P(CheckpointerTest, SavesTheStateAtBeginSaveWhileTheOptimizerRuns) {
  constexpr int64_t kLastStep = 12;
  OnRanks(4, Options(), [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    const auto fresh = checkpointer.ClaimAndLoad({});
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_FALSE(fresh->loaded);
    EXPECT_EQ(fresh->incarnation, 1u);
    party.Fill(1);
    for (int64_t step = 1; step <= kLastStep; ++step) {
      ASSERT_TRUE(
          checkpointer
              .BeginSave({step, {{"step", absl::StrFormat("%d", step)}}})
              .ok());
      party.StepTo(step + 1);
      const SaveReport report = Finish(checkpointer);
      EXPECT_TRUE(report.status.ok()) << report.status;
      EXPECT_EQ(report.outcome, SaveReport::Outcome::kCommitted);
      EXPECT_EQ(report.step, step);
      EXPECT_GT(report.bytes, 0u);
      EXPECT_EQ(party.Compare(step + 1), "");
    }
    EXPECT_EQ(checkpointer.counters().last_durable_step, kLastStep);
    EXPECT_TRUE(checkpointer.Close().ok());
  });
  for (const int ranks : {4, 3}) {
    OnRanks(ranks, Options(), [&](Party& party) {
      const auto report = party.checkpointer().ClaimAndLoad({});
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->step, kLastStep);
      EXPECT_EQ(report->attributes.at("step"),
                absl::StrFormat("%d", kLastStep));
      EXPECT_EQ(report->layout_from, "sim4");
      EXPECT_EQ(party.Compare(kLastStep), "");
      EXPECT_TRUE(party.checkpointer().Close().ok());
    });
  }
}

TEST_P(CheckpointerTest, CodedSavesComeBackOnAnyNumberOfRanks) {
  constexpr int64_t kLastStep = 6;
  CheckpointerOptions options = Options();
  options.codec = "zstd";
  OnRanks(4, options, [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    party.Fill(1);
    for (int64_t step = 1; step <= kLastStep; ++step) {
      ASSERT_TRUE(checkpointer.BeginSave({step, {}}).ok());
      party.StepTo(step + 1);
      const SaveReport report = Finish(checkpointer);
      EXPECT_TRUE(report.status.ok()) << report.status;
      EXPECT_EQ(party.Compare(step + 1), "");
    }
    EXPECT_TRUE(checkpointer.Close().ok());
  });
  // Threads of their own, and what a run saved coded it may go on to save
  // plain.
  for (const auto& [ranks, threads] : {std::pair(3, 2), {2, 0}}) {
    options.codec_threads = threads;
    if (threads == 0) options.codec = "none";
    OnRanks(ranks, options, [&](Party& party) {
      Checkpointer& checkpointer = party.checkpointer();
      const auto report = checkpointer.ClaimAndLoad({});
      ASSERT_TRUE(report.ok()) << report.status();
      const int64_t step = report->step;
      EXPECT_EQ(party.Compare(step), "");
      ASSERT_TRUE(checkpointer.BeginSave({step + 1, {}}).ok());
      party.StepTo(step + 1);
      EXPECT_TRUE(Finish(checkpointer).status.ok());
      party.Fill(step + 2);
      ASSERT_TRUE(checkpointer.BeginSave({step + 2, {}}).ok());
      EXPECT_TRUE(Finish(checkpointer).status.ok());
      EXPECT_TRUE(checkpointer.Close().ok());
    });
  }
  OnRanks(1, options, [&](Party& party) {
    const auto report = party.checkpointer().ClaimAndLoad({});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step, kLastStep + 4);
    EXPECT_EQ(party.Compare(kLastStep + 4), "");
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
}

TEST_P(CheckpointerTest, SharedFilesComeBackOnAnyNumberOfRanks) {
  int64_t step = 0;
  for (const auto& [ranks, files, expected] :
       {std::tuple(4, 2, 2), {3, -1, 1}, {4, 3, 3}, {2, 8, 2}, {1, 0, 1}}) {
    SCOPED_TRACE(absl::StrFormat("%d ranks, files %d", ranks, files));
    CheckpointerOptions options = Options();
    options.files = files;
    OnRanks(ranks, options, [&](Party& party) {
      Checkpointer& checkpointer = party.checkpointer();
      const auto report = checkpointer.ClaimAndLoad({});
      ASSERT_TRUE(report.ok()) << report.status();
      if (report->loaded) {
        EXPECT_EQ(report->step, step);
        EXPECT_EQ(party.Compare(step), "");
      }
      party.Fill(step + 1);
      for (int64_t next = step + 1; next <= step + 4; ++next) {
        ASSERT_TRUE(checkpointer.BeginSave({next, {}}).ok());
        party.StepTo(next + 1);
        const SaveReport saved = Finish(checkpointer);
        EXPECT_TRUE(saved.status.ok()) << saved.status;
      }
      EXPECT_TRUE(checkpointer.Close().ok());
    });
    step += 4;
    int shards = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(dir_.path())) {
      const std::string path = entry.path().string();
      shards +=
          path.find(absl::StrFormat("step-%09d", step)) != std::string::npos &&
          path.ends_with(".hf");
    }
    EXPECT_EQ(shards, expected);
  }
}

TEST_P(CheckpointerTest, FilesThatRanksShareAreNotCoded) {
  CheckpointerOptions options = Options();
  options.files = -1;
  options.codec = "zstd";
  const auto opened =
      Checkpointer::Open(options, std::move(MakeInprocGroups(1)[0]),
                         std::make_shared<SimLayout>(1), {}, RealClock());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("checkpoint.codec is 'zstd'"));
}

TEST_P(CheckpointerTest, ACodecThatIsNotThereIsRefusedByName) {
  for (const auto& [codec, level, says] :
       {std::tuple("lz4", 0, "checkpoint.codec is 'lz4'"),
        {"zstd", 23, "checkpoint.codec_level is 23"},
        {"zstd", -1, "checkpoint.codec_level is -1"}}) {
    CheckpointerOptions options = Options();
    options.codec = codec;
    options.codec_level = level;
    auto layout = std::make_shared<SimLayout>(1);
    const auto opened = Checkpointer::Open(
        options, std::move(MakeInprocGroups(1)[0]), layout, {}, RealClock());
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(says));
  }
}

TEST_P(CheckpointerTest, KeepsAsManyCheckpointsAsItWasAsked) {
  CheckpointerOptions options = Options();
  options.keep_last = 2;
  OnRanks(2, options, [&](Party& party) {
    ASSERT_TRUE(party.checkpointer().ClaimAndLoad({}).ok());
    for (int64_t step = 1; step <= 5; ++step) {
      party.Fill(step);
      ASSERT_TRUE(party.checkpointer().BeginSave({step, {}}).ok());
      EXPECT_TRUE(Finish(party.checkpointer()).status.ok());
    }
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
  int checkpoints = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(dir_.path() + "/checkpoints")) {
    checkpoints += entry.is_directory();
  }
  EXPECT_EQ(checkpoints, 2);
}

TEST_P(CheckpointerTest, MemoryDoesNotGrowWithTheNumberOfSaves) {
  CheckpointerOptions options = Options();
  options.keep_last = 2;
  OnRanks(1, options, [&](Party& party) {
    ASSERT_TRUE(party.checkpointer().ClaimAndLoad({}).ok());
    // The least of ten saves each: retention may be at work at any one of them.
    size_t early = SIZE_MAX, late = SIZE_MAX;
    for (int64_t step = 1; step <= 40; ++step) {
      ASSERT_TRUE(party.checkpointer().BeginSave({step, {}}).ok());
      party.StepTo(step + 1);
      EXPECT_TRUE(Finish(party.checkpointer()).status.ok());
      if (step > 5 && step <= 15) early = std::min(early, mallinfo2().uordblks);
      if (step > 30) late = std::min(late, mallinfo2().uordblks);
    }
    // 25 saves; one small leak in each would be seen.
    EXPECT_LT(late, early + 25 * 256);
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
}

TEST_P(CheckpointerTest, AFreshRunTakesItsStateFromAnother) {
  OnRanks(2, Options(), [&](Party& party) {
    ASSERT_TRUE(party.checkpointer().ClaimAndLoad({}).ok());
    for (int64_t step = 1; step <= 2; ++step) {
      party.Fill(step);
      ASSERT_TRUE(party.checkpointer().BeginSave({step, {}}).ok());
      EXPECT_TRUE(Finish(party.checkpointer()).status.ok());
    }
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
  TempDir other;
  CheckpointerOptions options = Options();
  options.run_dir = other.path();
  for (const std::string& from : {dir_.path() + "@1", dir_.path()}) {
    OnRanks(3, options, [&](Party& party) {
      LoadRequest request;
      request.init_from = from;
      const auto report = party.checkpointer().ClaimAndLoad(request);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->from_init);
      const int64_t step = from.ends_with("@1") ? 1 : 2;
      EXPECT_EQ(report->step, step);
      EXPECT_EQ(party.Compare(step), "");
      EXPECT_TRUE(party.checkpointer().Close().ok());
    });
  }
  // Not there: an error while the run is fresh, nothing once it has its own.
  LoadRequest missing;
  missing.init_from = "/nonexistent/run";
  OnRanks(2, options, [&](Party& party) {
    const auto report = party.checkpointer().ClaimAndLoad(missing);
    EXPECT_FALSE(report.ok());
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
  OnRanks(2, options, [&](Party& party) {
    ASSERT_TRUE(party.checkpointer().ClaimAndLoad({}).ok());
    party.Fill(7);
    ASSERT_TRUE(party.checkpointer().BeginSave({7, {}}).ok());
    EXPECT_TRUE(Finish(party.checkpointer()).status.ok());
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
  OnRanks(2, options, [&](Party& party) {
    const auto report = party.checkpointer().ClaimAndLoad(missing);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step, 7);
    EXPECT_FALSE(report->from_init);
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
}

TEST_P(CheckpointerTest, ADiskThatFillsCostsTheSaveAndNotTheRun) {
  CheckpointerOptions options = Options();
  options.fault_spec =
      "rank=1,match=step-000000002,op=write,n=2,do=fail,error=ENOSPC";
  OnRanks(2, options, [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    for (int64_t step = 1; step <= 3; ++step) {
      party.Fill(step);
      ASSERT_TRUE(checkpointer.BeginSave({step, {}}).ok());
      const SaveReport report = Finish(checkpointer);
      if (step != 2) {
        EXPECT_TRUE(report.status.ok()) << report.status;
        continue;
      }
      const bool own = party.rank() == Rank{1};
      EXPECT_EQ(report.status.code(), own ? absl::StatusCode::kResourceExhausted
                                          : absl::StatusCode::kAborted);
      EXPECT_EQ(report.outcome, own ? SaveReport::Outcome::kFailed
                                    : SaveReport::Outcome::kAborted);
      const std::string message(report.status.message());
      EXPECT_THAT(message, HasSubstr("saving step 2: rank 1"));
      EXPECT_THAT(message,
                  HasSubstr("training goes on, step 1 is still whole"));
      EXPECT_EQ(checkpointer.counters().failed_in_a_row, 1);
    }
    EXPECT_EQ(checkpointer.counters().failed_in_a_row, 0);
    EXPECT_EQ(checkpointer.counters().committed, 2);
    EXPECT_TRUE(checkpointer.Close().ok());
  });
}

TEST_P(CheckpointerTest, ASecondSaveIsSkippedWhileOneIsInFlight) {
  CheckpointerOptions options = Options();
  options.fault_spec = "match=step-000000001,op=sync,do=delay,ms=300";
  OnRanks(2, options, [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    party.Fill(1);
    ASSERT_TRUE(checkpointer.BeginSave({1, {}}).ok());
    const absl::Status second = checkpointer.BeginSave({2, {}});
    EXPECT_TRUE(absl::IsUnavailable(second)) << second;
    EXPECT_EQ(checkpointer.counters().skipped, 1);
    EXPECT_TRUE(checkpointer.save_in_flight());
    EXPECT_TRUE(Finish(checkpointer).status.ok());
    EXPECT_FALSE(checkpointer.save_in_flight());
    EXPECT_FALSE(checkpointer.PollSave().has_value()) << "a report comes once";
    ASSERT_TRUE(checkpointer.BeginSave({3, {}}).ok());
    EXPECT_TRUE(Finish(checkpointer).status.ok());
    EXPECT_TRUE(checkpointer.Close().ok());
  });
}

TEST_P(CheckpointerTest, NamesTheRankThatDoesNotVote) {
  CheckpointerOptions options = Options();
  options.vote_timeout_ms = 300;
  options.fault_spec = "rank=1,match=step-000000001,op=sync,do=delay,ms=1500";
  OnRanks(2, options, [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    ASSERT_TRUE(checkpointer.BeginSave({1, {}}).ok());
    const SaveReport report = Finish(checkpointer);
    EXPECT_EQ(report.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("saving step 1: 1 of 2 ranks did not vote within"));
    EXPECT_TRUE(checkpointer.Close().ok());
  });
}

// The sync of rank 0 takes far longer than its patience. The save is reported,
// no other can begin, and the silence counts as failures until it ends.
TEST(CheckpointerSilenceTest, AStorageThatDoesNotAnswerCountsAsFailures) {
  TempDir dir;
  CheckpointerOptions options;
  options.run_dir = dir.path();
  options.io_timeout_ms = 150;
  options.fault_spec =
      "match=step-000000001,op=sync,do=delay,ms=1500,lasting=no";
  OnRanks(1, options, [&](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    ASSERT_TRUE(checkpointer.BeginSave({1, {}}).ok());
    int64_t worst = 0;
    while (checkpointer.save_in_flight()) {
      worst = std::max(worst, checkpointer.counters().failed_in_a_row);
      RealClock().Sleep(absl::Milliseconds(20));
    }
    EXPECT_GE(worst, 3);
    const auto report = checkpointer.PollSave();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->status.code(), absl::StatusCode::kDeadlineExceeded)
        << report->status;
    EXPECT_EQ(checkpointer.counters().failed_in_a_row, 1);
    ASSERT_TRUE(checkpointer.BeginSave({1, {}}).ok());
    EXPECT_TRUE(Finish(checkpointer).status.ok());
    EXPECT_EQ(checkpointer.counters().failed_in_a_row, 0);
    EXPECT_TRUE(checkpointer.Close().ok());
  });
}

// 56 MiB of state on one rank, in the four kinds.
class LargeLayout final : public JobLayout {
 public:
  LargeLayout() {
    items_ = {{"w", "exp_avg", DType::kF32, {kRows, kColumns}},
              {"w", "exp_avg_sq", DType::kF32, {kRows, kColumns}},
              {"w", "master", DType::kF32, {kRows, kColumns}},
              {"w", "weight", DType::kBf16, {kRows, kColumns}}};
  }
  int world() const override { return 1; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank) const override {
    Holding holding;
    for (ItemIndex i = 0; i < items_.size(); ++i) {
      holding.region_bytes.push_back(kRows * kColumns *
                                     SizeOf(items_[i].dtype));
      holding.fragments.push_back(
          {i, WholeBox(items_[i].shape), 0, kRows * kColumns, i, 0});
    }
    return holding;
  }
  Holding WantedBy(Rank rank) const override { return StoredBy(rank); }
  std::string description() const override { return "large"; }

 private:
  static constexpr int64_t kRows = 4096;
  static constexpr int64_t kColumns = 1024;
  std::vector<ItemSpec> items_;
};

// In bytes, from /proc/self/status; 0 when it is not there.
int64_t MemoryLine(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return 1024 * std::stoll(line.substr(7));
  }
  return 0;
}
// The peak begins again from what is resident now, which is returned.
int64_t ResetPeak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return MemoryLine("VmRSS:");
}

TEST_P(CheckpointerTest, NeitherASaveNorALoadHoldsASecondCopyOfTheState) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  constexpr int64_t kMiB = 1 << 20;
  auto layout = std::make_shared<LargeLayout>();
  std::vector<AlignedBuffer> memory;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : layout->StoredBy(Rank{0}).region_bytes) {
    memory.emplace_back(bytes);
    regions.push_back(memory.back().span());
    std::memset(regions.back().data(), 1, bytes);
  }
  const auto open = [&] {
    return Checkpointer::Open(Options(), std::move(MakeInprocGroups(1)[0]),
                              layout, regions, RealClock());
  };
  auto saver = open();
  ASSERT_TRUE(saver.ok()) << saver.status();
  ASSERT_TRUE((*saver)->ClaimAndLoad({}).ok());
  int64_t before = ResetPeak();
  if (MemoryLine("VmHWM:") > before + kMiB) GTEST_SKIP() << "no clear_refs";
  ASSERT_TRUE((*saver)->BeginSave({1, {}}).ok());
  for (uint32_t r = 0; r < regions.size(); ++r) {
    (*saver)->FenceWrite(r, 0, regions[r].size());
    std::memset(regions[r].data(), 2, regions[r].size());
  }
  EXPECT_TRUE(Finish(**saver).status.ok());
  EXPECT_TRUE((*saver)->Close().ok());
  EXPECT_EQ((*saver)->arena_bytes(), 4u * kMiB);
  EXPECT_LT(MemoryLine("VmHWM:") - before, 16 * kMiB) << "of 56 MiB of state";

  auto loader = open();
  ASSERT_TRUE(loader.ok()) << loader.status();
  before = ResetPeak();
  ASSERT_TRUE((*loader)->ClaimAndLoad({}).ok());
  EXPECT_LT(MemoryLine("VmHWM:") - before, 28 * kMiB)
      << "16 MiB of reads, of 56 MiB of state";
  EXPECT_EQ(regions[0][12345], std::byte{1});
  EXPECT_EQ(regions[3].back(), std::byte{1});
  EXPECT_TRUE((*loader)->Close().ok());
}

// Outlive the thread that is left behind.
std::atomic<bool> group_hangs = false;
std::atomic<int> groups_ended = 0;

// A group whose Poll does not come back for a while, as no call of a thread
// does that the kernel holds.
class HangingGroup : public Group {
 public:
  explicit HangingGroup(std::unique_ptr<Group> group)
      : group_(std::move(group)) {}
  ~HangingGroup() override { ++groups_ended; }
  Rank rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string HostOf(Rank rank) const override { return group_->HostOf(rank); }
  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    group_->Send(to, tag, body);
  }
  std::optional<Message> Poll() override {
    while (group_hangs) RealClock().Sleep(absl::Milliseconds(5));
    return group_->Poll();
  }

 private:
  std::unique_ptr<Group> group_;
};

TEST(CheckpointerSilenceTest, AThreadThatHangsHoldsNeitherALoadNorTheEndUp) {
  for (const bool at_load : {true, false}) {
    TempDir dir;
    CheckpointerOptions options;
    options.run_dir = dir.path();
    if (at_load) options.load_timeout_ms = 300;
    options.io_timeout_ms = 300;
    options.close_timeout_ms = 100;
    group_hangs = at_load;
    groups_ended = 0;
    Party party(
        std::make_shared<SimLayout>(1),
        std::make_unique<HangingGroup>(std::move(MakeInprocGroups(1)[0])),
        options);
    ASSERT_TRUE(party.status().ok()) << party.status();
    const auto loaded = party.checkpointer().ClaimAndLoad({});
    EXPECT_EQ(loaded.status().code(), at_load
                                          ? absl::StatusCode::kDeadlineExceeded
                                          : absl::StatusCode::kOk)
        << loaded.status();
    group_hangs = true;
    RealClock().Sleep(absl::Milliseconds(400));
    const absl::Status closed = party.checkpointer().Close();
    EXPECT_EQ(closed.code(), absl::StatusCode::kDeadlineExceeded) << closed;
    EXPECT_THAT(std::string(closed.message()), HasSubstr(dir.path()));
    // It finds its end by itself, while the regions are still there.
    group_hangs = false;
    while (groups_ended == 0) RealClock().Sleep(absl::Milliseconds(5));
  }
}

TEST(CheckpointerOpenTest, SaysWhichRegionDoesNotFit) {
  TempDir dir;
  CheckpointerOptions options;
  options.run_dir = dir.path();
  auto layout = std::make_shared<SimLayout>(1);
  AlignedBuffer small(4096);
  const auto opened = Checkpointer::Open(
      options, std::move(MakeInprocGroups(1)[0]), layout,
      {small.span(), small.span(), small.span(), small.span()}, RealClock());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("region 0 has 4096 bytes"));
}

TEST(CheckpointerOpenTest, ATimeoutIsOfThisWorld) {
  TempDir dir;
  for (const int64_t timeout :
       {int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    CheckpointerOptions options;
    options.run_dir = dir.path();
    options.vote_timeout_ms = timeout;
    const auto opened =
        Checkpointer::Open(options, std::move(MakeInprocGroups(1)[0]),
                           std::make_shared<SimLayout>(1), {}, RealClock());
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(opened.status().message()),
                HasSubstr("a checkpoint timeout"));
  }
}

TEST(CheckpointerOpenTest, RefusesARunDirectoryThatIsNotThere) {
  CheckpointerOptions options;
  options.run_dir = "/nonexistent/run";
  auto layout = std::make_shared<SimLayout>(1);
  std::vector<AlignedBuffer> memory;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : layout->StoredBy(Rank{0}).region_bytes) {
    memory.emplace_back(bytes);
    regions.push_back(memory.back().span());
  }
  const auto opened = Checkpointer::Open(
      options, std::move(MakeInprocGroups(1)[0]), layout, regions, RealClock());
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("/nonexistent/run"));
}

}  // namespace
}  // namespace holdfast::ckpt
