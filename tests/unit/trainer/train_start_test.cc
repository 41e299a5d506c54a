// What a start compares, refuses and takes up: ranks that disagree, changes of
// data or model, weights of another run, lost checkpoints, starts in vain.

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/train_job.h"
#include "tests/support/train_outcomes.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/trainer.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;
using tests::AllEndWith;
using tests::FirstDifference;
using tests::LeaveAtLook;
using tests::TrainJob;

TEST(TrainStartTest, RanksWithAnotherConfigurationAreRefusedByName) {
  TrainJob job;
  job.mesh.dp = 2;
  job.each = [](int rank, TrainOptions& options, TrainEnv&) {
    if (rank == 1) options.sets.push_back("optim.lr=0.5");
  };
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitConfig));
  EXPECT_THAT(outcomes[1].message, HasSubstr("optim.lr"));
  EXPECT_FALSE(std::filesystem::exists(job.options.run_dir));
}

TEST(TrainStartTest, DataThatOneRankLacksStopsAllWithItsCode) {
  TrainJob job;
  job.mesh.dp = 2;
  job.each = [&](int rank, TrainOptions& options, TrainEnv&) {
    if (rank == 1) {
      options.sets.push_back("data.paths=[\"" + job.path("gone") + "\"]");
    }
  };
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitConfig));
  EXPECT_THAT(outcomes[0].message, HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[1].message, HasSubstr("gone"));
}

TEST(TrainStartTest, AnOptionThatOneRankCannotReadStopsAllAtOnce) {
  TrainJob job;
  job.mesh.dp = 2;
  job.each = [](int rank, TrainOptions& options, TrainEnv&) {
    if (rank == 1) options.resume = "sometimes";
  };
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
}

TEST(TrainStartTest, ASeedOrDataOrModelThatChangedIsRefused) {
  TrainJob job;
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  const auto sets = job.options.sets;
  for (const char* set :
       {"train.seed=2", "optim.lr=0.02", "batch.global_seqs=16",
        "data.eval_fraction=0.5", "numerics.virtual_dp=2", "model.seq_len=9",
        "model.rope_theta=500000.0", "optim.beta2=0.9",
        "numerics.compute=f32"}) {
    job.options.sets = sets;
    job.Set(set);
    const auto outcomes = job.Run();
    EXPECT_THAT(outcomes, AllEndWith(kExitConfig)) << set;
    EXPECT_EQ(job.Status()["exit_code"], kExitConfig) << set;
  }
  job.options.sets = sets;
  job.WriteTokens("others", 2);
  job.Set("data.paths=[\"" + job.path("others") + "\"]");
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
  job.options.accept_change = {"data"};
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
}

TEST(TrainStartTest, WeightsAsAStartDoNotHideAChangeAtTheNextOne) {
  TrainJob donor;
  donor.Set("train.steps=2");
  EXPECT_THAT(donor.Run(), AllEndWith(kExitFinished));

  // A batch script passes the same words at every start.
  TrainJob job;
  job.options.init_from = donor.options.run_dir;
  job.options.init_weights_only = true;
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  EXPECT_EQ(job.Metrics().front().step, 1);
  job.Set("train.seed=2");
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
}

TEST(TrainStartTest, WeightsAloneAreTheSameOnAnyLayout) {
  TrainJob donor;
  donor.Set("train.steps=2");
  EXPECT_THAT(donor.Run(), AllEndWith(kExitFinished));
  std::vector<MetricsLine> whole;
  for (const ckpt::Mesh& mesh : {ckpt::Mesh{}, ckpt::Mesh{.pp = 2, .dp = 2}}) {
    TrainJob job;
    job.mesh = mesh;
    job.Set("train.steps=3");
    job.options.init_from = donor.options.run_dir;
    job.options.init_weights_only = true;
    EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
    if (whole.empty()) whole = job.Metrics();
    EXPECT_EQ(FirstDifference(whole, job.Metrics()), "");
  }
  // From the first sample, with weights that have seen it already.
  EXPECT_EQ(whole.front().step, 1);
  EXPECT_EQ(whole.front().sample_digest, donor.Metrics()[0].sample_digest);
  EXPECT_LT(whole.front().loss, donor.Metrics()[0].loss);
}

TEST(TrainStartTest, AWholeStateFromAnotherRunMustFitThisOne) {
  TrainJob donor;
  donor.Set("train.steps=2");
  donor.Set("optim.decay_steps=40");
  EXPECT_THAT(donor.Run(), AllEndWith(kExitFinished));

  TrainJob job;
  job.options.init_from = donor.options.run_dir;
  job.Set("train.seed=2");
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
  job.options.sets.clear();
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  EXPECT_EQ(job.Metrics().front().step, 3);

  TrainJob reference;
  EXPECT_THAT(reference.Run(), AllEndWith(kExitFinished));
  const auto whole = reference.Metrics();
  EXPECT_EQ(FirstDifference({whole.begin() + 2, whole.end()}, job.Metrics()),
            "");
}

TEST(TrainStartTest, AFailedStartLeavesItsOwnCodeInTheStatus) {
  TrainJob job;
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  EXPECT_EQ(job.Status()["exit_code"], kExitSavedRestart);
  // Whoever reads 75 here starts the job again, for ever.
  job.options.config_path = job.path("nothing.toml");
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
  EXPECT_EQ(job.Status()["exit_code"], kExitConfig);
  EXPECT_EQ(job.Status()["state"], "failed");
}

TEST(TrainStartTest, ARunWhoseCheckpointsAreGoneIsNoFreshRun) {
  TrainJob job;
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  // All that the checkpoint layer knows a run by.
  for (const auto& entry :
       std::filesystem::directory_iterator(job.options.run_dir)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".jsonl") || name == "status.json") continue;
    std::filesystem::remove_all(entry.path());
  }
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitNoCheckpoint));
  EXPECT_EQ(job.Status()["exit_code"], kExitNoCheckpoint);
  job.options.resume = "never";
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
}

TEST(TrainStartTest, AnEmptyRunIsNotResumed) {
  TrainJob job;
  job.mesh.dp = 2;
  job.options.resume = "required";
  EXPECT_THAT(job.Run(), AllEndWith(kExitNoCheckpoint));
}

TEST(TrainStartTest, GoingBackToAStepRepeatsItsBits) {
  TrainJob job;
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  const auto before = job.Metrics();
  job.options.resume = "2";
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
  const auto after = job.Metrics();
  EXPECT_EQ(after[2].incarnation, 2u);
  EXPECT_EQ(FirstDifference(before, after), "");
}

// A start whose first steps fail in every save: it ends without a saved step.
void CrashOnce(TrainJob& job) {
  job.options.fault_spec = "match=shard,op=write,do=fail,lasting=yes";
  EXPECT_THAT(job.Run(), AllEndWith(kExitIo));
  job.options.fault_spec = "";
}

TEST(TrainStartTest, ThreeStartsWithoutASavedStepAreEnough) {
  TrainJob job;
  job.mesh.dp = 2;
  job.Set("checkpoint.failures_max=1");
  for (int start = 0; start < 3; ++start) CrashOnce(job);
  const auto outcomes = job.Run();
  EXPECT_THAT(outcomes, AllEndWith(kExitNoProgress));
  EXPECT_EQ(job.Status()["exit_code"], kExitNoProgress);
  job.options.accept_change = {"no-progress"};
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
}

TEST(TrainStartTest, StartsThatSavedAStepAreNotCountedAgainstIt) {
  TrainJob job;
  job.Set("checkpoint.failures_max=1");
  for (int start = 0; start < 4; ++start) {
    // Saves step 2, then not the last one; the next start goes back on purpose.
    job.options.fault_spec =
        "match=step-000000006,op=write,do=fail,lasting=yes";
    EXPECT_THAT(job.Run(), AllEndWith(kExitIo)) << start;
    job.options.resume = "never";
  }
}

TEST(TrainStartTest, ADeviceThatIsNotBuiltIsRefused) {
  TrainJob job;
  job.Set("device=fake");
  EXPECT_THAT(job.Run(), AllEndWith(kExitConfig));
}

}  // namespace
}  // namespace holdfast::trainer
