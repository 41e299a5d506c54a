// The whole loop, on threads as ranks: to the end, stopped and resumed on other
// layouts, with signals, broken storage and full disks.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/train_job.h"
#include "tests/support/train_outcomes.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/trainer.h"

namespace holdfast::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::AllEndWith;
using tests::FirstDifference;
using tests::LeaveAtLook;
using tests::TrainJob;

TEST(TrainLoopTest, RunsToTheLastStepAndSaysSo) {
  TrainJob job;
  job.mesh.dp = 2;
  job.Set("train.eval_interval=3");
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitFinished));
  EXPECT_EQ(outcomes[1].step, 6);
  // Steps are faster than saves here: that of step 4 may be skipped.
  EXPECT_EQ(job.SavedSteps().front(), 2);
  EXPECT_EQ(job.SavedSteps().back(), 6);
  EXPECT_EQ(job.Status()["state"], "finished");
  EXPECT_EQ(job.Status()["exit_code"], kExitFinished);
  EXPECT_EQ(job.Status()["step"], 6);

  const auto lines = job.Metrics();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines.front().last_durable_step, -1);
  EXPECT_TRUE(lines[2].eval_loss.has_value());
  EXPECT_FALSE(lines[3].eval_loss.has_value());
  for (const MetricsLine& line : lines) {
    EXPECT_GT(line.peak_bytes, 0) << line.step;
    EXPECT_EQ(line.fwd_ms.size(), 1u);
    EXPECT_GT(line.tokens_per_s, 0);
    // Eight sequences of eleven tokens, some of which do not count.
    EXPECT_LT(line.tokens, 88);
    EXPECT_GT(line.tokens, 44);
    EXPECT_NEAR(line.tokens_per_s * line.step_ms, 88e3, 1e-6);
    EXPECT_EQ(line.layout, "tp1-pp1-dp2");
    EXPECT_EQ(line.incarnation, 1u);
  }
}

TEST(TrainLoopTest, AMetricsLineHasEveryFieldThatIsPromised) {
  TrainJob job;
  job.Set("train.steps=1");
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  std::ifstream file(job.options.run_dir + "/metrics.jsonl");
  const nlohmann::json line = nlohmann::json::parse(file);
  for (const char* key :
       {"time", "step", "loss", "loss_bits", "grad_norm", "lr", "tokens",
        "tokens_per_s", "step_ms", "mfu", "peak_bytes", "fwd_ms", "bwd_ms",
        "wait_ms", "sample_digest", "save_stall_ms", "last_durable_step",
        "layout", "incarnation"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
}

TEST(TrainLoopTest, StoppedAndResumedOnOtherLayoutsItHasTheSameBits) {
  TrainJob reference;
  reference.Set("train.eval_interval=3");
  EXPECT_THAT(reference.Run(), AllEndWith(kExitFinished));

  TrainJob job;
  job.Set("train.eval_interval=3");
  job.mesh.dp = 3;  // four leaves over three members
  LeaveAtLook(job, 3);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  EXPECT_EQ(job.Status()["state"], "stopped");
  EXPECT_EQ(job.Status()["exit_code"], kExitSavedRestart);
  job.mesh = {.pp = 2, .dp = 1};
  LeaveAtLook(job, 9);  // 3 to 7: in the evaluation after step 3
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  job.mesh = {.pp = 1, .dp = 2};
  job.signals = nullptr;
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));

  const auto lines = job.Metrics();
  std::set<std::string> layouts;
  for (const MetricsLine& line : lines) layouts.insert(line.layout);
  EXPECT_EQ(layouts.size(), 3u);
  EXPECT_EQ(FirstDifference(reference.Metrics(), lines), "");
}

TEST(TrainLoopTest, WhatIsLoadedOnAnyLayoutIsWhatWasSaved) {
  for (const char* tied : {"model.tied=true", "model.tied=false"}) {
    TrainJob job;
    job.Set(tied);
    job.Set("model.layers=3");
    LeaveAtLook(job, 6);
    EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
    const std::string saved = job.DigestOf("step-000000004.i0001.a01") +
                              job.DigestOf("step-000000004.i0001.a02");
    ASSERT_NE(saved, "");

    // Each goes back there and saves before its first step.
    job.options.resume = "4";
    std::vector<float> losses;
    int incarnation = 1;
    for (const ckpt::Mesh& mesh :
         {ckpt::Mesh{.dp = 3}, ckpt::Mesh{.pp = 3}, ckpt::Mesh{.tp = 2},
          ckpt::Mesh{.tp = 2, .pp = 2}, ckpt::Mesh{}}) {
      job.mesh = mesh;
      job.signals = [](int, int look) {
        return look == 2   ? SignalAction::kSave
               : look <= 2 ? SignalAction::kNone
                           : SignalAction::kSaveAndLeave;
      };
      EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
      ++incarnation;
      EXPECT_EQ(job.DigestOf(
                    absl::StrFormat("step-000000004.i%04d.a01", incarnation)),
                saved)
          << ckpt::ToString(mesh) << " " << tied;
      losses.push_back(static_cast<float>(job.Metrics().back().loss));
    }
    // Bits on any DP and PP; the same to rounding on another TP, whose
    // vocabulary is padded to other rows.
    EXPECT_EQ(losses[0], losses[4]);
    EXPECT_EQ(losses[1], losses[4]);
    EXPECT_NEAR(losses[2] / losses[4], 1, 1e-3);
    EXPECT_NEAR(losses[3] / losses[4], 1, 1e-3);
  }
}

TEST(TrainLoopTest, ARankThatDiesInAStepTakesTheOthersWithIt) {
  for (const int at : {3, 4}) {
    TrainJob job;
    job.mesh = {.pp = 3};
    job.Set("model.layers=3");
    job.Set("checkpoint.interval=1");
    // A rank may have begun a save that the others never will.
    job.Set("checkpoint.vote_timeout_ms=500");
    job.signals = [&](int rank, int look) {
      if (rank == 1 && look == at) {
        job.abort(absl::AbortedError("rank 1 died"));
      }
      return SignalAction::kNone;
    };
    const auto outcomes = job.Run();
    EXPECT_THAT(outcomes, AllEndWith(kExitIo));
    EXPECT_THAT(outcomes, Each(Field("peers_may_wait",
                                     &TrainOutcome::peers_may_wait, true)));
    EXPECT_EQ(job.Status()["state"], "failed");
    job.signals = nullptr;
    EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  }
}

TEST(TrainLoopTest, ASecondRunOfAFinishedOneFinishesAtOnce) {
  TrainJob job;
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  const auto saved = job.SavedSteps();
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(ReadAllMetrics(job.options.run_dir)->size(), 6u);
  EXPECT_EQ(job.SavedSteps(), saved);
}

TEST(TrainLoopTest, AFinishedRunThatIsToldToLeaveIsFinished) {
  TrainJob job;
  LeaveAtLook(job, 8);  // after the sixth step
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
}

TEST(TrainLoopTest, OneRanksSignalStopsAllAtTheSameStep) {
  TrainJob job;
  job.mesh.dp = 2;
  job.signals = [](int rank, int look) {
    return rank == 1 && look >= 5 ? SignalAction::kSaveAndLeave
                                  : SignalAction::kNone;
  };
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitSavedRestart));
  EXPECT_EQ(outcomes[0].step, 3);
  EXPECT_EQ(outcomes[1].step, 3);
  EXPECT_EQ(job.SavedSteps().back(), 3);
}

TEST(TrainLoopTest, AskedToLeaveWhileStartingItTakesNothing) {
  TrainJob job;
  job.mesh.dp = 2;
  job.signals = [](int rank, int) {
    return rank == 1 ? SignalAction::kSaveAndLeave : SignalAction::kNone;
  };
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitSavedRestart));
  EXPECT_EQ(outcomes[0].incarnation, 0u);
  job.signals = nullptr;
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(job.Metrics().front().incarnation, 1u);
}

TEST(TrainLoopTest, AskedToLeaveBeforeTheFirstStepItClaimsNoSave) {
  TrainJob job;
  LeaveAtLook(job, 2);
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitSavedRestart));
  EXPECT_THAT(outcomes[0].message, Not(HasSubstr("is saved")));
  EXPECT_EQ(job.Status()["exit_code"], kExitSavedRestart);
}

TEST(TrainLoopTest, ASignalCutsAnEvaluationShort) {
  TrainJob job;
  job.Set("train.eval_interval=1");
  LeaveAtLook(job, 4);  // in the evaluation after the first step
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitSavedRestart));
  EXPECT_EQ(outcomes[0].step, 1);
  ASSERT_EQ(job.Metrics().size(), 1u);
  EXPECT_FALSE(job.Metrics()[0].eval_loss.has_value());
}

// SIGUSR1 as the real handler holds it: set until it is cleared.
struct SaveRequest {
  std::atomic<bool> asked = false;
  void Install(TrainJob& job, int at_look) {
    job.each = [this](int, TrainOptions&, TrainEnv& env) {
      env.clear_save_request = [this] { asked = false; };
    };
    job.signals = [this, at_look](int, int look) {
      if (look == at_look) asked = true;
      return asked ? SignalAction::kSave : SignalAction::kNone;
    };
  }
};

TEST(TrainLoopTest, ASaveAskedForDuringAnEvaluationIsMade) {
  TrainJob job;
  job.Set("checkpoint.interval=0");
  job.Set("train.eval_interval=2");
  SaveRequest request;
  request.Install(job, 5);  // in the evaluation after the second step
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_THAT(job.SavedSteps(), ElementsAre(2, 6));
}

TEST(TrainLoopTest, ASaveAskedForDuringASaveIsMadeAfterIt) {
  TrainJob job;
  job.Set("train.steps=40");
  job.Set("checkpoint.interval=0");
  // The first save takes longer than a few steps.
  job.options.fault_spec = "match=shard,op=write,do=delay,ms=100,lasting=no";
  SaveRequest request;
  request.Install(job, 3);
  std::atomic<int> asked_again = 0;
  const auto signals = job.signals;
  job.signals = [&, signals](int rank, int look) {
    if (look == 4) {
      request.asked = true;
      ++asked_again;
    }
    // Forty steps take longer than two saves.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return signals(rank, look);
  };
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(asked_again, 1);
  EXPECT_EQ(job.SavedSteps().size(), 3u);  // both, and the last step's
}

TEST(TrainLoopTest, AFullDiskEndsTheRunAfterThreeSavesAndLeavesTheOldOne) {
  TrainJob job;
  job.mesh.dp = 2;
  job.Set("train.steps=40");
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));

  job.signals = nullptr;
  job.options.fault_spec =
      "rank=1,match=shard,op=write,do=fail,error=ENOSPC,lasting=yes";
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitIo));
  EXPECT_THAT(outcomes[0].message, HasSubstr("3 saves in a row"));
  EXPECT_THAT(outcomes[0].message, HasSubstr("step 2"));
  EXPECT_GT(outcomes[0].step, 6);
  EXPECT_EQ(job.Status()["exit_code"], kExitIo);
  EXPECT_THAT(job.SavedSteps(), ElementsAre(2));

  job.options.fault_spec = "";
  LeaveAtLook(job, 3);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  EXPECT_THAT(job.SavedSteps(), ElementsAre(2, 3));
}

// Started again by itself it would take the run back, and so on for ever.
TEST(TrainLoopTest, AJobThatLostItsRunStopsForAPerson) {
  for (const int steps : {2, 40}) {  // at the last save, and before
    TrainJob job;
    job.mesh.dp = 2;
    job.Set(absl::StrFormat("train.steps=%d", steps));
    job.signals = [&job](int rank, int look) {
      if (rank == 0 && look == 2) {
        std::ofstream(job.options.run_dir + "/owners/i0002.claim") << "mine";
      }
      return SignalAction::kNone;
    };
    const auto outcomes = job.Run();
    EXPECT_THAT(outcomes, AllEndWith(kExitConfig));
    EXPECT_THAT(outcomes[0].message,
                HasSubstr("another job has taken the run"));
    EXPECT_LT(outcomes[0].step, 40);  // how soon it hears depends on the disk
    EXPECT_THAT(job.SavedSteps(), IsEmpty());
  }
}

TEST(TrainLoopTest, OneFailedSaveStopsNobody) {
  TrainJob job;
  job.mesh.dp = 2;
  job.options.fault_spec = "rank=1,match=shard,op=write,do=fail";
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(job.SavedSteps().back(), 6);
  EXPECT_LT(job.SavedSteps().size(), 3u);
}

TEST(TrainLoopTest, ARunWhoseLastSaveFailsEndsWithIo) {
  TrainJob job;
  job.Set("checkpoint.interval=0");
  job.options.fault_spec = "match=shard,op=sync,do=fail,lasting=yes";
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitIo));
  EXPECT_EQ(job.Status()["state"], "failed");
}

// From now on the disk under this file is full, for this process.
void FillDiskUnder(const std::string& path) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) != path) continue;
    ASSERT_GE(dup2(full, std::stoi(entry.path().filename())), 0);
  }
  close(full);
}

TEST(TrainLoopTest, RecordsThatCannotBeWrittenDoNotStopTraining) {
  TrainJob job;
  job.signals = [&](int, int look) {
    if (look == 3) {
      FillDiskUnder(job.options.run_dir + "/metrics.jsonl");
      FillDiskUnder(job.options.run_dir + "/journal.jsonl");
    }
    return SignalAction::kNone;
  };
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(job.Status()["state"], "finished");
  EXPECT_LT(job.Metrics().size(), 6u);
}

TEST(TrainLoopTest, LossesThatAreNoNumbersChangeNothingAndEndTheRun) {
  TrainJob job;
  job.mesh.dp = 2;
  job.Set("optim.lr=1e30");
  job.Set("optim.warmup_steps=0");
  job.Set("optim.weight_decay=0");
  job.Set("checkpoint.interval=1");
  job.Set("fault.nonfinite_max=2");
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitConfig));
  EXPECT_THAT(outcomes[1].message, HasSubstr("not finite"));
  const auto lines = job.Metrics();
  ASSERT_GE(lines.size(), 2u);
  EXPECT_TRUE(lines.back().skipped);
  EXPECT_TRUE(lines[lines.size() - 2].skipped);
  EXPECT_FALSE(lines.front().skipped);
}

// Runs `job` and counts the moments at which rank 0 was seen in something that
// nothing would ever have ended.
int EndlessMoments(TrainJob& job) {
  Heartbeat heartbeat;
  std::atomic<bool> over = false;
  int moments = 0;
  int endless = 0;
  std::thread watcher([&] {
    while (!over) {
      const Heartbeat::Reading reading = heartbeat.Read();
      if (!reading.operation.empty()) {
        ++moments;
        endless += !reading.has_deadline;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  job.each = [&](int rank, TrainOptions&, TrainEnv& env) {
    if (rank == 0) env.heartbeat = &heartbeat;
  };
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  over = true;
  watcher.join();
  EXPECT_GT(moments, 10);
  return endless;
}

TEST(TrainLoopTest, NoWaitForASaveIsWithoutADeadline) {
  TrainJob job;
  job.Set("train.steps=1");
  job.Set("checkpoint.interval=0");
  job.options.fault_spec = "match=shard,op=write,do=delay,ms=100,lasting=no";
  EXPECT_EQ(EndlessMoments(job), 0);
}

TEST(TrainLoopTest, NoWaitForALateRankIsWithoutADeadline) {
  TrainJob job;
  job.mesh.dp = 2;
  job.Set("train.steps=3");
  job.Set("checkpoint.interval=0");
  // Rank 1 comes late to every agreement.
  job.signals = [](int rank, int) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return SignalAction::kNone;
  };
  EXPECT_EQ(EndlessMoments(job), 0);
}

TEST(TrainLoopTest, ASaveThatOutlastsTheGraceIsGivenUpWithAWord) {
  TrainJob job;
  job.Set("checkpoint.interval=0");
  job.Set("fault.grace_s=1");
  job.options.fault_spec = "match=shard,op=write,do=delay,ms=1500,lasting=no";
  LeaveAtLook(job, 3);
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitIo));
  EXPECT_THAT(outcomes[0].message, HasSubstr("fault.grace_s"));
}

TEST(TrainLoopTest, TheGraceCountsForTheSaveInFlightAndTheLastOneTogether) {
  TrainJob job;
  job.Set("checkpoint.interval=2");
  job.Set("fault.grace_s=1");
  // Each save takes 900 ms: that of step 2 and that of step 3 take more than
  // one second.
  job.options.fault_spec =
      "match=step-000000002,op=sync,do=delay,ms=900,lasting=no;"
      "match=step-000000003,op=sync,do=delay,ms=900,lasting=no";
  LeaveAtLook(job, 5);  // after step 3
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitIo));
  EXPECT_THAT(outcomes[0].message, HasSubstr("fault.grace_s"));
}

}  // namespace
}  // namespace holdfast::trainer
