// SIGTERM and SIGUSR1 wherever a job may be: nothing that was finished is lost,
// and the code says what happened.

#include <signal.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

using ::testing::SizeIs;

// Steps without end, so that the signal comes first.
constexpr char kManySteps[] = "train.steps=1000000";

class SignalsTest : public JobTest {
 protected:
  // The newest checkpoint is of the last finished step, whole, and the job
  // ended with 75 and said so.
  void ExpectSavedAndLeft(const std::string& run, const Ended& ended) {
    EXPECT_EQ(ended.code, 75) << ended;
    const int64_t step = runs_.LastStep(run);
    EXPECT_THAT(ended.err, HasSubstr("step " + std::to_string(step) +
                                     " is saved; start again"));
    const nlohmann::json whole = runs_.Ckptctl({"verify", runs_.Path(run)});
    EXPECT_EQ(whole["step"], step);
    EXPECT_EQ(runs_.Status(run)["exit_code"], 75);
    EXPECT_EQ(runs_.Status(run)["state"], "stopped");
    EXPECT_EQ(runs_.Status(run)["step"], step);
    runs_.ExpectNoProcessLeft(run);
  }

  // The run goes on where it left, without a gap or a repeated step.
  void ExpectGoesOn(const std::string& run,
                    const std::vector<std::string>& sets) {
    const int64_t step = runs_.LastStep(run);
    const size_t lines = runs_.AllMetrics(run).size();
    EXPECT_EQ(lines, static_cast<size_t>(step));
    std::vector<std::string> more = sets;
    more.push_back("train.steps=" + std::to_string(step + 2));
    runs_.TrainToTheEnd(run, {.ranks = 1, .sets = more});
    const auto all = runs_.AllMetrics(run);
    ASSERT_THAT(all, SizeIs(lines + 2));
    EXPECT_EQ(all[lines].step, step + 1);
  }
};

TEST_F(SignalsTest, TermDuringAStepLosesNothing) {
  // Some tenths of a second a step.
  const std::vector<std::string> sets = {"batch.global_seqs=512",
                                         "checkpoint.interval=1000"};
  JobSpec spec{.ranks = 4, .pp = 2, .sets = sets};
  spec.sets.push_back(kManySteps);
  Running job = runs_.Start("run", spec);
  ASSERT_TRUE(job.WaitForText("step 2/"));
  job.Signal(SIGTERM);
  const Ended ended = job.Wait();
  EXPECT_THAT(ended.err, HasSubstr("the ranks save and leave"));
  ExpectSavedAndLeft("run", ended);
  ExpectGoesOn("run", sets);
}

TEST_F(SignalsTest, OneRankThatHearsOfItIsEnough) {
  Running job = runs_.Start(
      "run", {.ranks = 3, .sets = {kManySteps, "checkpoint.interval=1000000"}});
  ASSERT_TRUE(job.WaitForText("step 5/"));
  const auto pids = runs_.RankPids("run");
  ASSERT_EQ(pids.size(), 3u);
  kill(pids.at(2), SIGTERM);
  ExpectSavedAndLeft("run", job.Wait());
}

TEST_F(SignalsTest, TermDuringStartUpLeavesTheRunAsItWas) {
  // As soon as the ranks are there, and then a little later each time.
  runs_.TrainToTheEnd("base", {.ranks = 2, .sets = {"train.steps=4"}});
  const std::string digest = runs_.Digest("base");
  for (const int wait_ms : {0, 60, 150}) {
    runs_.CopyRun("base", "run");
    Running job = runs_.Start("run", {.ranks = 2, .sets = {kManySteps}});
    ASSERT_TRUE(job.WaitUntil(
        "both ranks run", [&] { return runs_.RankPids("run").size() == 2; }));
    absl::SleepFor(absl::Milliseconds(wait_ms));
    job.Signal(SIGTERM);
    const Ended ended = job.Wait();
    EXPECT_EQ(ended.code, 75) << wait_ms << " ms: " << ended;
    EXPECT_EQ(runs_.Status("run")["exit_code"], 75);
    const int64_t step = runs_.LastStep("run");
    EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("run")})["step"], step);
    if (step == 4) {
      EXPECT_EQ(runs_.Digest("run"), digest);
    }
    ExpectGoesOn("run", {});
  }
}

TEST_F(SignalsTest, TermBeforeTheFirstStepOfAFreshRun) {
  Running job = runs_.Start("run", {.ranks = 2, .sets = {kManySteps}});
  ASSERT_TRUE(job.WaitUntil("both ranks run",
                            [&] { return runs_.RankPids("run").size() == 2; }));
  job.Signal(SIGTERM);
  const Ended ended = job.Wait();
  EXPECT_EQ(ended.code, 75) << ended;
  runs_.TrainToTheEnd("run", {.ranks = 2});
}

TEST_F(SignalsTest, TermDuringALoadIsHonouredWithNothingLost) {
  runs_.TrainToTheEnd("run", {.ranks = 2, .sets = {"train.steps=4"}});
  const std::string digest = runs_.Digest("run");
  // Reads of shards begin late; the claim is put before them.
  Running job =
      runs_.Start("run", {.ranks = 2,
                          .sets = {kManySteps},
                          .fault = "op=read,match=shard,do=delay,ms=150"});
  ASSERT_TRUE(job.WaitUntil("the claim", [&] {
    return std::filesystem::exists(runs_.Path("run/owners/i0002.claim"));
  }));
  job.Signal(SIGTERM);
  const Ended ended = job.Wait();
  ExpectSavedAndLeft("run", ended);
  EXPECT_EQ(runs_.LastStep("run"), 4);
  EXPECT_EQ(runs_.Digest("run"), digest);
  EXPECT_EQ(runs_.Ckptctl({"show", runs_.Path("run")})["incarnation"], 1)
      << "the same state was saved once more";
}

TEST_F(SignalsTest, TermCutsAnEvaluationShort) {
  // Nearly all the time is spent evaluating.
  Running job = runs_.Start(
      "run", {.ranks = 2,
              .sets = {kManySteps, "train.eval_interval=1",
                       "train.eval_seqs=2000", "checkpoint.interval=1000000"}});
  ASSERT_TRUE(job.WaitForText("step 2/"));
  absl::SleepFor(absl::Milliseconds(100));
  job.Signal(SIGTERM);
  ExpectSavedAndLeft("run", job.Wait());
  const auto lines = runs_.AllMetrics("run");
  EXPECT_TRUE(lines[1].eval_loss.has_value());
  EXPECT_FALSE(lines.back().eval_loss.has_value()) << "it was not cut short";
}

TEST_F(SignalsTest, TermDuringASaveWaitsForItAndSavesTheLastStepToo) {
  Running job = runs_.Start(
      "run",
      {.ranks = 2,
       .sets = {kManySteps, "checkpoint.interval=2", "batch.global_seqs=64"},
       .fault = "match=step-000000002,op=write,do=delay,ms=400"});
  ASSERT_TRUE(job.WaitUntil("a save", [&] {
    return std::filesystem::exists(
        runs_.Path("run/checkpoints/step-000000002.i0001.a01"));
  }));
  job.Signal(SIGTERM);
  const Ended ended = job.Wait();
  ExpectSavedAndLeft("run", ended);
  EXPECT_EQ(runs_.StatesOfSteps("run")[2], "committed");
}

TEST_F(SignalsTest, ASecondTermLeavesAtOnceWith143) {
  runs_.TrainToTheEnd("run", {.ranks = 2, .sets = {"train.steps=4"}});
  // A save that would take half a minute.
  Running job =
      runs_.Start("run", {.ranks = 2,
                          .sets = {kManySteps, "checkpoint.interval=1000000"},
                          .fault = "op=sync,match=shard,do=delay,ms=30000"});
  ASSERT_TRUE(job.WaitForText("step 6/"));
  job.Signal(SIGTERM);
  ASSERT_TRUE(job.WaitForText("saving, asked to leave by a signal"));
  // What comes within half a second is the same wish.
  absl::SleepFor(absl::Milliseconds(700));
  const absl::Time before = absl::Now();
  job.Signal(SIGTERM);
  const Ended ended = job.Wait();
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
  EXPECT_EQ(ended.code, 128 + SIGTERM) << ended;
  EXPECT_EQ(runs_.Status("run")["exit_code"], 128 + SIGTERM);
  runs_.ExpectNoProcessLeft("run");
  const Ended again = runs_.TrainToTheEnd("run", {.ranks = 2});
  EXPECT_THAT(again.err, HasSubstr("resumed step-000000004"));
}

TEST_F(SignalsTest, Usr1SavesAndGoesOn) {
  Running job = runs_.Start(
      "run", {.ranks = 2, .sets = {kManySteps, "checkpoint.interval=1000000"}});
  ASSERT_TRUE(job.WaitForText("step 3/"));
  job.Signal(SIGUSR1);
  ASSERT_TRUE(job.WaitForText(": saved step-"));
  const int64_t then = runs_.LastStep("run");
  ASSERT_TRUE(job.WaitUntil("more steps",
                            [&] { return runs_.LastStep("run") > then + 2; }));
  job.Signal(SIGTERM);
  ExpectSavedAndLeft("run", job.Wait());
  const auto saves = runs_.Journal("run", "save");
  ASSERT_GE(saves.size(), 2u);
  EXPECT_EQ(saves[0].facts.at("outcome").text, "committed");
}

TEST_F(SignalsTest, Usr1DuringAnEvaluationIsNotForgotten) {
  Running job = runs_.Start(
      "run", {.ranks = 2,
              .sets = {kManySteps, "train.eval_interval=1",
                       "train.eval_seqs=2000", "checkpoint.interval=1000000"}});
  ASSERT_TRUE(job.WaitForText("step 1/"));
  absl::SleepFor(absl::Milliseconds(50));
  job.Signal(SIGUSR1);
  ASSERT_TRUE(job.WaitForText(": saved step-"));
  job.Signal(SIGTERM);
  ExpectSavedAndLeft("run", job.Wait());
}

TEST_F(SignalsTest, Usr1BesideASaveIsHonouredAfterIt) {
  Running job = runs_.Start(
      "run", {.ranks = 2,
              .sets = {kManySteps, "checkpoint.interval=1000000"},
              .fault = "op=sync,match=shard,do=delay,ms=700,lasting=no"});
  ASSERT_TRUE(job.WaitForText("step 3/"));
  job.Signal(SIGUSR1);
  ASSERT_TRUE(job.WaitUntil("a save", [&] {
    std::error_code error;
    for (std::filesystem::directory_iterator
             entry(runs_.Path("run/checkpoints"), error),
         end;
         !error && entry != end; entry.increment(error)) {
      if (entry->is_directory()) return true;
    }
    return false;
  }));
  absl::SleepFor(absl::Milliseconds(100));
  job.Signal(SIGUSR1);
  ASSERT_TRUE(job.WaitUntil(
      "two saves", [&] { return runs_.Journal("run", "save").size() >= 2; }));
  job.Signal(SIGTERM);
  ExpectSavedAndLeft("run", job.Wait());
}

}  // namespace
}  // namespace holdfast::tests
