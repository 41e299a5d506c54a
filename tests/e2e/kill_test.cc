// kill -9 of one rank at a storage operation of its life: claim, adoption,
// loading, seal, a save beside training, the last save, retention. Whatever is
// left, the next start finds a whole checkpoint, no older than the newest one
// that was said to be saved, and makes the same bits from it.
//
// Some operations are tried; disk/save_kill_test.cc tries every one, with ranks
// that only save.

#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

class KillTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (IsSkipped()) return;
    runs_.TrainToTheEnd("ref", {});
    digest_ = runs_.Digest("ref");
    // Step 4 is whole in every run below..
    runs_.TrainToTheEnd("base", {.ranks = 2, .sets = {"train.steps=4"}});
  }

  // A job from step 4 to 8 whose save of step 6 is beside training. True when
  // the fault struck.
  bool Break(const std::string& fault) {
    runs_.CopyRun("base", "run");
    const Ended broken = runs_.Train(
        "run", {.ranks = 2,
                .sets = {"checkpoint.interval=6", "checkpoint.keep_last=2"},
                .fault = fault});
    if (broken.code == 0) return false;
    EXPECT_EQ(broken.code, 128 + 9) << fault << ": " << broken;
    EXPECT_THAT(broken.err, HasSubstr("killed by signal 9"));
    for (const int64_t step : {4, 6, 8}) {
      const std::string said = "step " + std::to_string(step) + ": saved";
      if (step == 4 || broken.err.find(said) != std::string::npos) {
        saved_step_ = step;
      }
    }
    return true;
  }

  void ExpectItComesBack(const std::string& fault) {
    SCOPED_TRACE(fault);
    // Whole, before anybody repairs anything.
    const nlohmann::json listed = runs_.Ckptctl({"ls", runs_.Path("run")});
    ASSERT_FALSE(listed["newest"].is_null()) << listed;
    runs_.Ckptctl({"verify", runs_.Path("run"), "--hash"});
    for (const auto& entry : listed["checkpoints"]) {
      if (entry["newest"] == true) {
        EXPECT_GE(entry["step"], saved_step_);
      }
    }
    // One rank: the layout changes on the way. No progress is accepted, since
    // every kill is a start of its own.
    const Ended back = runs_.Train("run", {});
    EXPECT_EQ(back.code, 0) << back;
    EXPECT_EQ(runs_.Digest("run"), digest_);
    runs_.ExpectSameSteps("ref", "run");
  }

  // Kills `rank` at its operations first, first + stride, ... until there are
  // no more; how many there were.
  int Sweep(int rank, int first, int stride, const std::string& when) {
    int struck = 0;
    for (int n = first;; n += stride) {
      const std::string fault = "rank=" + std::to_string(rank) +
                                ",n=" + std::to_string(n) +
                                ",do=kill,when=" + when;
      if (!Break(fault)) return struck;
      ++struck;
      ExpectItComesBack(fault);
      if (HasFatalFailure()) return struck;
    }
  }

  std::string digest_;
  int64_t saved_step_ = 4;
};

TEST_F(KillTest, RankZeroAtItsOperations) {
  EXPECT_GE(Sweep(0, 2, 13, "before"), 4);
}

TEST_F(KillTest, AnotherRankAtItsOperations) {
  EXPECT_GE(Sweep(1, 3, 9, "after"), 2);
}

// The line between "not there" and "there".
TEST_F(KillTest, JustBeforeTheManifestThereIsNoCheckpoint) {
  const std::string fault = "match=step-000000006,op=put,do=kill,when=before";
  ASSERT_TRUE(Break(fault));
  EXPECT_EQ(runs_.StatesOfSteps("run")[6], "attempt");
  EXPECT_EQ(saved_step_, 4);
  ExpectItComesBack(fault);
  EXPECT_EQ(runs_.AllMetrics("run").back().step, 8);
}

TEST_F(KillTest, JustAfterTheManifestThereIs) {
  const std::string fault = "match=step-000000006,op=put,do=kill,when=after";
  ASSERT_TRUE(Break(fault));
  EXPECT_EQ(runs_.StatesOfSteps("run")[6], "committed");
  saved_step_ = 6;
  ExpectItComesBack(fault);
}

}  // namespace
}  // namespace holdfast::tests
