// Storage that fails while a job trains: the save is given up, the run goes on
// with the bits that it would have had; three in a row end it with what was
// whole still whole.

#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class StorageFaultTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (IsSkipped()) return;
    runs_.TrainToTheEnd("ref", {.sets = {"checkpoint.interval=0"}});
  }
  // step -> outcome, by rank 0's journal.
  std::map<int64_t, std::string> Outcomes(const std::string& run) const {
    std::map<int64_t, std::string> outcomes;
    for (const auto& save : runs_.Journal(run, "save")) {
      outcomes[save.facts.at("step").integer] = save.facts.at("outcome").text;
    }
    return outcomes;
  }
};

TEST_F(StorageFaultTest, OneFailureCostsOneSave) {
  for (const char* fault :
       {"rank=1,match=step-000000004,op=write,n=2,do=fail,error=ENOSPC",
        "rank=0,match=step-000000004,op=write,n=1,do=fail,error=ENOSPC",
        "rank=1,match=step-000000004,op=sync,do=fail",
        "rank=0,match=step-000000004,op=mkdir,do=fail,error=EDQUOT",
        "rank=0,match=step-000000004,op=put,do=fail"}) {
    SCOPED_TRACE(fault);
    std::filesystem::remove_all(runs_.Path("run"));
    const Ended ended =
        runs_.TrainToTheEnd("run", {.ranks = 2, .fault = fault});
    EXPECT_THAT(ended.err, HasSubstr("training goes on"));
    auto outcomes = Outcomes("run");
    EXPECT_THAT(outcomes[4], AnyOf("aborted", "failed", "unknown"));
    EXPECT_EQ(outcomes[8], "committed");
    auto states = runs_.StatesOfSteps("run");
    EXPECT_NE(states[4], "committed");
    EXPECT_EQ(states[8], "committed");
    runs_.ExpectSameSteps("ref", "run");
    EXPECT_EQ(runs_.Digest("run"), runs_.Digest("ref"));
  }
}

TEST_F(StorageFaultTest, TheThirdFailureInARowEndsTheRunWith74) {
  runs_.TrainToTheEnd("run", {.ranks = 2, .sets = {"train.steps=4"}});
  const std::string digest = runs_.Digest("run");
  // Slow steps, so that each save is over before the next one is due.
  const Ended ended = runs_.Train(
      "run",
      {.ranks = 2,
       .sets = {"train.steps=1000000", "checkpoint.interval=2"},
       .fault =
           "rank=1,match=shard,op=write,do=fail,error=ENOSPC,lasting=yes"});
  EXPECT_EQ(ended.code, 74) << ended;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("3 saves in a row have failed"),
                               HasSubstr("No space left on device"),
                               HasSubstr("step 4 is the newest whole")));
  EXPECT_EQ(runs_.Status("run")["exit_code"], 74);
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("run")})["step"], 4);
  EXPECT_EQ(runs_.Digest("run"), digest);
  runs_.ExpectNoProcessLeft("run");
  // With room again it goes on.
  runs_.TrainToTheEnd("run", {.ranks = 2});
  runs_.ExpectSameSteps("ref", "run", 5, 8);
}

TEST_F(StorageFaultTest, ALastSaveThatFailsEndsTheRunWith74) {
  const Ended ended = runs_.Train(
      "run", {.ranks = 2,
              .fault = "rank=1,match=step-000000008,op=write,do=fail,"
                       "error=ENOSPC,lasting=yes"});
  EXPECT_EQ(ended.code, 74) << ended;
  EXPECT_THAT(ended.err, HasSubstr("step 8 could not be saved"));
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("run")})["step"], 4);
  runs_.TrainToTheEnd("run", {.ranks = 2});
  EXPECT_EQ(runs_.Digest("run"), runs_.Digest("ref"));
}

TEST_F(StorageFaultTest, ASlowDiskHoldsAStepUpForNoLongerThanTheFenceMay) {
  for (const char* fence : {"checkpoint.fence_ms=50", "checkpoint.fence_ms=0",
                            "checkpoint.fence_ms=20000"}) {
    SCOPED_TRACE(fence);
    std::filesystem::remove_all(runs_.Path("run"));
    // One write at a time: the optimizer meets the writer.
    const Ended ended = runs_.TrainToTheEnd(
        "run", {.ranks = 2,
                .sets = {fence, "checkpoint.interval=3",
                         "checkpoint.queue_depth=1", "checkpoint.arena_mb=1"},
                .fault = "match=step-000000003,op=write,do=delay,ms=150"});
    runs_.ExpectSameSteps("ref", "run");
    EXPECT_EQ(runs_.Digest("run"), runs_.Digest("ref"));
    auto outcomes = Outcomes("run");
    EXPECT_TRUE(outcomes.contains(3));
    EXPECT_EQ(outcomes[8], "committed");
    if (std::string(fence).ends_with("=20000")) {
      EXPECT_EQ(outcomes[3], "committed") << "there was time enough";
    } else {
      EXPECT_THAT(outcomes[3], AnyOf("aborted", "failed"));
      EXPECT_THAT(ended.err, AllOf(HasSubstr("checkpoint.fence_ms"),
                                   HasSubstr("training goes on")));
    }
    for (const auto& save : runs_.Journal("run", "save")) {
      const double wait_ms = save.facts.at("fence_wait_ms").number;
      // At one place; later ones find the save given up.
      if (std::string(fence).ends_with("=50")) {
        EXPECT_LT(wait_ms, 1000);
      }
    }
  }
}

TEST_F(StorageFaultTest, ReadsThatFailForAMomentAreTriedAgain) {
  runs_.TrainToTheEnd("run", {.ranks = 2, .sets = {"train.steps=4"}});
  runs_.TrainToTheEnd(
      "run", {.ranks = 2, .fault = "rank=1,match=shard,op=read,do=fail"});
  runs_.ExpectSameSteps("ref", "run");
  EXPECT_EQ(runs_.AllMetrics("run").size(), 8u) << "it has stepped back";
}

TEST_F(StorageFaultTest, ReadsThatFailForGoodEndTheStartWith74) {
  runs_.TrainToTheEnd("run", {.ranks = 2, .sets = {"train.steps=4"}});
  const Ended ended = runs_.Train(
      "run",
      {.ranks = 2, .fault = "rank=1,match=shard,op=read,do=fail,lasting=yes"});
  EXPECT_EQ(ended.code, 74) << ended;
  EXPECT_THAT(ended.err, HasSubstr("rank 1"));
  EXPECT_EQ(runs_.StatesOfSteps("run")[4], "committed")
      << "an unreadable disk is no damage";
  runs_.TrainToTheEnd("run", {.ranks = 2});
  runs_.ExpectSameSteps("ref", "run");
}

// A file system that is really full, metrics and journal included.
TEST_F(StorageFaultTest, AFullFileSystemCostsSavesAndRecordsNotTheRun) {
  std::filesystem::create_directory(runs_.Path("small"));
  if (mount("none", runs_.Path("small").c_str(), "tmpfs", 0, "size=16m") != 0) {
    GTEST_SKIP() << "mounting a small file system is forbidden here";
  }
  {
    Running job = runs_.Start(
        "small/run", {.ranks = 2,
                      .sets = {"train.steps=1000000", "checkpoint.interval=50",
                               "checkpoint.keep_last=1",
                               "checkpoint.failures_max=1000000"}});
    EXPECT_TRUE(job.WaitForText(": saved step-"));
    // Another user of the disk.
    std::ofstream filler(runs_.Path("small/filler"), std::ios::binary);
    const std::string zeros(1 << 16, '\0');
    while (filler.write(zeros.data(), zeros.size()).flush()) {
    }
    EXPECT_TRUE(job.WaitForText("its records have a gap"));
    EXPECT_TRUE(job.WaitForText("this save is abandoned"));
    filler.close();
    std::filesystem::remove(runs_.Path("small/filler"));
    EXPECT_TRUE(job.WaitForText("records can be written again"));
    job.Signal(SIGTERM);
    const Ended ended = job.Wait();
    EXPECT_EQ(ended.code, 75) << ended.err.substr(
        ended.err.size() - std::min<size_t>(ended.err.size(), 3000));
    const int64_t step = runs_.LastStep("small/run");
    EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("small/run")})["step"], step);
  }
  EXPECT_EQ(umount(runs_.Path("small").c_str()), 0);
}

}  // namespace
}  // namespace holdfast::tests
