// Two training jobs on one run: started at once, and one whose rank 0 is
// stopped between its last look at owners/ and the manifest. The one that has
// lost the run ends with 78, which nobody starts again by itself.

#include <signal.h>

#include <cstdint>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

constexpr int kLostTheRun = 78;

using OwnersTest = JobTest;

TEST_F(OwnersTest, OfTwoJobsStartedAtOnceOneEndsWith78) {
  JobSpec spec{.ranks = 2,
               .sets = {"train.steps=1000000", "checkpoint.interval=2"}};
  Running first = runs_.Start("run", spec);
  Running second = runs_.Start("run", spec);
  // WaitUntil fails when the job it watches ends, so it is done by hand.
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (!first.ended() && !second.ended() && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  Running& loser = first.ended() ? first : second;
  Running& winner = first.ended() ? second : first;
  const Ended ended = loser.Wait();
  EXPECT_EQ(ended.code, kLostTheRun) << ended;
  EXPECT_THAT(ended.err, HasSubstr("another job"));
  // The other one goes on, and leaves when it is asked to.
  ASSERT_TRUE(winner.WaitForText(": saved step-"));
  winner.Signal(SIGTERM);
  EXPECT_EQ(winner.Wait().code, 75);
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("run"), "--hash"})["step"],
            runs_.LastStep("run"));
  runs_.ExpectNoProcessLeft("run");
}

// Its save commits, late; the next one hears.
TEST_F(OwnersTest, AJobThatWasStoppedBeforeItsManifestEndsWith78) {
  Running old_job = runs_.Start(
      "run", {.sets = {"train.steps=1000000", "checkpoint.interval=2"},
              // The second save, of whatever step: one that is due while the
              // first is being written is skipped.
              .fault = "match=i0001.a02/MANIFEST,op=put,do=stop"});
  ASSERT_TRUE(old_job.WaitForText("storage fault: stopping this process"));
  const pid_t stopped = runs_.RankPids("run").at(0);
  runs_.TrainToTheEnd("run", {.ranks = 2});
  const std::string digest = runs_.Digest("run");
  kill(stopped, SIGCONT);
  const Ended ended = old_job.Wait();
  EXPECT_EQ(ended.code, kLostTheRun) << ended;
  EXPECT_THAT(ended.err, HasSubstr("another job has taken the run"));
  EXPECT_EQ(runs_.Digest("run"), digest);
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("run"), "--hash"})["step"], 8);
  runs_.TrainToTheEnd("run", {.sets = {"train.steps=10"}});
}

}  // namespace
}  // namespace holdfast::tests
