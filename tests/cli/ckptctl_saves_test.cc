// `ckptctl verify` and `diff` on what a checkpointer saved: one byte, one file,
// one float that is not as it was.

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/runs/small_runs.h"
#include "tests/support/saved_run.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CkptctlSavesTest : public testing::Test {
 protected:
  // A run of two saves by one rank, of values that follow from `seed`. Between
  // them, one float of the masters is changed when `change` is set.
  void MakeRun(const std::string& name, bool change) const {
    std::filesystem::create_directories(runs_.Path(name));
    const std::shared_ptr<const ckpt::TrainLayout> layout =
        SmallLayout(/*tp=*/1, /*pp=*/1, /*dp=*/1);
    JobMemory memory(*layout, layout->StoredBy(ckpt::Rank{0}), /*seed=*/5);
    ckpt::CheckpointerOptions options;
    options.run_dir = runs_.Path(name);
    auto checkpointer = ckpt::Checkpointer::Open(
        options, std::move(ckpt::MakeInprocGroups(1)[0]), layout,
        memory.spans(), ckpt::RealClock());
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
    ASSERT_TRUE((*checkpointer)->ClaimAndLoad({}).ok());
    for (const int64_t step : {1, 2}) {
      if (step == 2 && change) {
        const float value = 0.25f;
        std::memcpy(memory.spans()[ckpt::kMasterRegion].data() + 40, &value,
                    sizeof value);
      }
      ASSERT_TRUE((*checkpointer)->BeginSave({step, {}}).ok());
      const auto report = (*checkpointer)->WaitForSave(absl::Seconds(30));
      ASSERT_TRUE(report.has_value());
      ASSERT_TRUE(report->status.ok()) << report->status;
    }
    ASSERT_TRUE((*checkpointer)->Close().ok());
  }
  std::string StepOf(const std::string& run, int step) const {
    return runs_.Path(run) + "@" + std::to_string(step);
  }

  const SmallRuns runs_;
};

TEST_F(CkptctlSavesTest, VerifyComputesTheDigestAgainAndFindsAFlippedByte) {
  MakeRun("run", false);
  const nlohmann::json whole =
      runs_.Ckptctl({"verify", runs_.Path("run"), "--hash"});
  EXPECT_EQ(whole["ok"], true);
  EXPECT_THAT(whole["damage"], IsEmpty());
  EXPECT_EQ(whole["digest"], runs_.Digest("run"));
  EXPECT_EQ(whole["digest"], whole["digest_in_manifest"]);

  // One byte of each part of the file: header, data, index, footer.
  const std::string shard = runs_.Shard("run", 2, 0);
  const uint64_t size = std::filesystem::file_size(shard);
  const std::string bytes = FileText(shard);
  for (const uint64_t offset : {uint64_t{20}, uint64_t{5000}, size / 2,
                                size - 4096 - 4000, size - 4090}) {
    FlipByte(shard, offset);
    const nlohmann::json damaged =
        runs_.Ckptctl({"verify", runs_.Path("run")}, 65);
    EXPECT_EQ(damaged["ok"], false) << offset;
    ASSERT_THAT(damaged["damage"], testing::Not(IsEmpty())) << offset;
    EXPECT_THAT(damaged["damage"][0]["file"].get<std::string>(),
                HasSubstr("shard-00000.hf"));
    FlipByte(shard, offset);
  }
  EXPECT_EQ(FileText(shard), bytes);
  const Ended again = runs_.Program("ckptctl", {"verify", runs_.Path("run")});
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_THAT(again.out, HasSubstr("whole"));
}

TEST_F(CkptctlSavesTest, VerifyFindsShardsThatAreShortGoneOrSwapped) {
  MakeRun("run", false);
  const std::string shard = runs_.Shard("run", 2, 0);
  const std::string bytes = FileText(shard);
  std::filesystem::resize_file(shard, bytes.size() - 4096);
  EXPECT_EQ(runs_.Program("ckptctl", {"verify", runs_.Path("run")}).code, 65);
  std::filesystem::remove(shard);
  EXPECT_EQ(runs_.Program("ckptctl", {"verify", runs_.Path("run")}).code, 65);
  // The same state, from the save before.
  std::filesystem::copy_file(runs_.Shard("run", 1, 0), shard);
  const Ended swapped = runs_.Program("ckptctl", {"verify", runs_.Path("run")});
  EXPECT_EQ(swapped.code, 65) << swapped;
}

TEST_F(CkptctlSavesTest, DiffFindsTheOneTensorThatChanged) {
  MakeRun("run", true);
  const nlohmann::json same =
      runs_.Ckptctl({"diff", StepOf("run", 1), StepOf("run", 1)}, 0);
  EXPECT_EQ(same["equal"], true);
  const nlohmann::json changed =
      runs_.Ckptctl({"diff", StepOf("run", 1), StepOf("run", 2)}, 1);
  EXPECT_EQ(changed["equal"], false);
  EXPECT_EQ(changed["items_different"], 1);
  EXPECT_EQ(changed["elements_different"], 1);
  ASSERT_THAT(changed["items"], SizeIs(1));
  EXPECT_EQ(changed["items"][0]["kind"], "master");
  const Ended text =
      runs_.Program("ckptctl", {"diff", StepOf("run", 1), StepOf("run", 2)});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("DIFFERENT"), HasSubstr("1 of"),
                    HasSubstr(changed["items"][0]["name"].get<std::string>())));
  // Only weights are asked for, and these are equal.
  EXPECT_EQ(runs_
                .Program("ckptctl", {"diff", StepOf("run", 1), StepOf("run", 2),
                                     "--kind", "weight"})
                .code,
            0);
}

}  // namespace
}  // namespace holdfast::tests
