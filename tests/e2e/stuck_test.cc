// A rank that stops answering: the others' watchdogs name it, the job ends
// soon, nothing is left running, and the next start goes on.

#include <signal.h>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StuckTest : public JobTest {
 protected:
  // Stops `rank` of a job in mid-training.
  Ended Stop(const JobSpec& spec, int rank) {
    Running job = runs_.Start("run", spec);
    if (!job.WaitForText(": saved step-")) return {};
    const auto pids = runs_.RankPids("run");
    EXPECT_EQ(pids.size(), static_cast<size_t>(spec.ranks));
    if (!pids.contains(rank)) return {};
    const absl::Time stopped = absl::Now();
    kill(pids.at(rank), SIGSTOP);
    Ended ended = job.Wait();
    ended.seconds = absl::ToDoubleSeconds(absl::Now() - stopped);
    return ended;
  }
};

TEST_F(StuckTest, AStoppedRankEndsTheJobAndIsNamed) {
  for (const int rank : {1, 0}) {
    SCOPED_TRACE(rank);
    const Ended ended =
        Stop({.ranks = 4,
              .pp = 2,
              .sets = {"train.steps=1000000", "checkpoint.interval=5",
                       "fault.step_timeout_s=2"}},
             rank);
    EXPECT_EQ(ended.code, 74) << ended;
    EXPECT_LT(ended.seconds, 2 + 8) << ended;
    EXPECT_THAT(
        ended.err,
        AllOf(
            HasSubstr(absl::StrFormat("first failing rank  %d of 4 on ", rank)),
            HasSubstr(absl::StrFormat("waiting for rank %d on ", rank)),
            HasSubstr("beyond the deadline"),
            HasSubstr("start the same command again")));
    EXPECT_EQ(runs_.Status("run")["exit_code"], 74);
    runs_.ExpectNoProcessLeft("run");
  }
  const int64_t step = runs_.Ckptctl({"verify", runs_.Path("run")})["step"];
  const Ended again = runs_.TrainToTheEnd(
      "run", {.sets = {absl::StrFormat("train.steps=%d", step + 1)}});
  EXPECT_THAT(again.err, HasSubstr(absl::StrFormat("resumed step-%09d",
                                                   static_cast<int>(step))));
}

// The training side does not wait for it, the save does.
TEST_F(StuckTest, ADiskThatHangsCostsTheSaveNotTheRun) {
  runs_.TrainToTheEnd("ref", {});
  const Ended ended = runs_.TrainToTheEnd(
      "run", {.ranks = 2,
              .sets = {"checkpoint.vote_timeout_ms=300"},
              .fault = "rank=1,match=step-000000004,op=sync,do=delay,ms=2500"});
  EXPECT_THAT(ended.err, AllOf(HasSubstr("1 of 2 ranks did not vote within"),
                               HasSubstr(": 1 (on ")));
  runs_.ExpectSameSteps("ref", "run");
  EXPECT_EQ(runs_.StatesOfSteps("run")[8], "committed");
}

}  // namespace
}  // namespace holdfast::tests
