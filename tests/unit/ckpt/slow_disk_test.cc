// A disk that is slower than the optimizer. The arena takes what the optimizer
// reaches first; when it is full the optimizer waits, but not for longer than
// fence_ms; then the save is given up, says so, and training goes on with the
// bits that it would have had.

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/checkpointer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/party.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::Finish;
using tests::OnRanks;
using tests::Party;

constexpr uint64_t kUnit = 8192;  // SimLayout's on two ranks, in whole pages
constexpr int64_t kFenceMs = 150;

// Begins the save of `step`, as soon as the one before has let go.
void Begin(Party& party, int64_t step) {
  party.Fill(step);
  for (int tries = 0; tries < 2000; ++tries) {
    const absl::Status begun = party.checkpointer().BeginSave({step, {}});
    if (begun.ok()) return;
    ASSERT_TRUE(absl::IsUnavailable(begun)) << begun;
    RealClock().Sleep(absl::Milliseconds(5));
  }
  FAIL() << "the save of step " << step << " does not begin";
}

CheckpointerOptions SlowDisk(const std::string& dir, int64_t write_ms) {
  CheckpointerOptions options;
  options.run_dir = dir;
  options.queue_depth = 1;  // the others are not submitted yet
  options.arena_bytes = 2 * kUnit;
  options.fence_ms = kFenceMs;
  options.fault_spec =
      absl::StrFormat("match=step-000000002,op=write,do=delay,ms=%d", write_ms);
  return options;
}

TEST(SlowDiskTest, AFullArenaHoldsAStepUpForFenceMsAndCostsTheSave) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the disk still reads what the step stores, of a save that "
                  "was given up for it and can only vote no: a race by design";
#endif
  tests::TempDir dir{tests::MemoryFolder()};
  OnRanks(2, SlowDisk(dir.path(), 1000), [](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    EXPECT_LE(checkpointer.arena_bytes(), 2 * kUnit);
    Begin(party, 1);
    EXPECT_TRUE(Finish(checkpointer).status.ok());

    Begin(party, 2);
    const absl::Duration before = RealClock().Monotonic();
    party.StepTo(3);
    const absl::Duration step = RealClock().Monotonic() - before;
    // Once, at one place: eight units were in danger, and the disk would have
    // held it up for eight seconds. The rest is slack for a loaded machine.
    EXPECT_LT(step, absl::Milliseconds(kFenceMs + 3000));
    EXPECT_EQ(party.Compare(3), "") << "the step has other bits";

    const SaveReport report = Finish(checkpointer);
    EXPECT_TRUE(report.outcome == SaveReport::Outcome::kFailed ||
                report.outcome == SaveReport::Outcome::kAborted);
    EXPECT_THAT(std::string(report.status.message()),
                testing::AllOf(HasSubstr("fence"),
                               HasSubstr("training goes on, step 1 is still "
                                         "whole")));
    if (report.outcome == SaveReport::Outcome::kFailed) {
      EXPECT_GE(report.fence_wait_ms, kFenceMs);
      EXPECT_LT(report.fence_wait_ms, kFenceMs + 3000);
    }
    EXPECT_EQ(checkpointer.counters().failed_in_a_row, 1);

    Begin(party, 3);
    EXPECT_TRUE(Finish(checkpointer).status.ok());
    EXPECT_TRUE(checkpointer.Close().ok());
  });
  CheckpointerOptions options;
  options.run_dir = dir.path();
  OnRanks(2, options, [](Party& party) {
    const auto loaded = party.checkpointer().ClaimAndLoad({});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->step, 3);
    EXPECT_EQ(party.Compare(3), "");
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
}

// Slow, but within what the arena and the fence forgive: the checkpoint is that
// of BeginSave although the optimizer was through before it was written.
TEST(SlowDiskTest, WithTimeEnoughTheSaveIsWhole) {
  tests::TempDir dir{tests::MemoryFolder()};
  CheckpointerOptions options = SlowDisk(dir.path(), 30);
  options.fence_ms = 20'000;
  OnRanks(2, options, [](Party& party) {
    Checkpointer& checkpointer = party.checkpointer();
    ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
    Begin(party, 2);
    party.StepTo(3);
    EXPECT_EQ(party.Compare(3), "");
    const SaveReport report = Finish(checkpointer);
    EXPECT_TRUE(report.status.ok()) << report.status;
    // The step met units that were not written: it copied those not submitted,
    // and waited for those that were. A writer that submits the next one each
    // time before the step gets there leaves nothing to copy.
    EXPECT_TRUE(report.bytes_copied > 0 || report.fence_wait_ms > 30)
        << report.bytes_copied << " bytes, " << report.fence_wait_ms << " ms";
    EXPECT_TRUE(checkpointer.Close().ok());
  });
  options.fault_spec = "";
  OnRanks(3, options, [](Party& party) {
    ASSERT_TRUE(party.checkpointer().ClaimAndLoad({}).ok());
    EXPECT_EQ(party.Compare(2), "");
    EXPECT_TRUE(party.checkpointer().Close().ok());
  });
}

}  // namespace
}  // namespace holdfast::ckpt
