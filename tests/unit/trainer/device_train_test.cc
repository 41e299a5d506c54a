// Whole runs on a device that runs its work late and out of order between
// streams, whose memory the host cannot touch and whose unfinished copies show
// garbage: every bit of training and of what is saved and loaded is that of the
// processor.

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/train_job.h"
#include "tests/support/train_outcomes.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/trainer.h"

namespace holdfast::trainer {
namespace {

using tests::AllEndWith;
using tests::FirstDifference;
using tests::LeaveAtLook;
using tests::TrainJob;

kernels::FakeDeviceOptions Late(uint64_t seed, int eager_max) {
  kernels::FakeDeviceOptions options;
  options.seed = seed;
  options.device_bytes = size_t{128} << 20;
  options.eager_max = eager_max;
  return options;
}

// Each rank has a device of its own.
void OnDevices(TrainJob& job, const kernels::FakeDeviceOptions& options) {
  job.each = [options](int rank, TrainOptions&, TrainEnv& env) {
    env.make_device = [options, rank] {
      kernels::FakeDeviceOptions own = options;
      own.seed += static_cast<uint64_t>(rank);
      return kernels::NewFakeDevice(own);
    };
  };
}

// Digest by the step of each checkpoint that is there.
std::map<int64_t, std::string> Digests(const TrainJob& job) {
  std::map<int64_t, std::string> digests;
  for (const auto& entry : std::filesystem::directory_iterator(
           job.options.run_dir + "/checkpoints")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-")) continue;
    const std::string digest = job.DigestOf(name);
    if (!digest.empty()) digests[std::stoll(name.substr(5))] = digest;
  }
  return digests;
}

// Of the tiny run on the processor, every step saved.
const std::map<int64_t, std::string>& ReferenceDigests() {
  static const auto* const digests = [] {
    auto* const all = new std::map<int64_t, std::string>;
    for (int64_t step = 1; step <= 6; ++step) {
      TrainJob job;
      job.Set(absl::StrFormat("train.steps=%d", step));
      job.Set("checkpoint.interval=100");
      EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
      (*all)[step] = Digests(job)[step];
    }
    return all;
  }();
  return *digests;
}

const std::vector<MetricsLine>& ReferenceMetrics() {
  static const auto* const lines = [] {
    TrainJob job;
    EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
    return new std::vector<MetricsLine>(job.Metrics());
  }();
  return *lines;
}

void ExpectReferenceDigests(const TrainJob& job, const std::string& what) {
  const auto digests = Digests(job);
  EXPECT_FALSE(digests.empty()) << what;
  for (const auto& [step, digest] : digests) {
    EXPECT_EQ(digest, ReferenceDigests().at(step)) << what << ", step " << step;
  }
}

TEST(DeviceTrainTest, SavesBesideEveryStepHaveTheBitsOfTheProcessors) {
  int eager_max = 0;
  for (const ckpt::Mesh& mesh :
       {ckpt::Mesh{}, ckpt::Mesh{.pp = 2}, ckpt::Mesh{.dp = 2}}) {
    TrainJob job;
    job.mesh = mesh;
    job.Set("checkpoint.interval=1");
    job.Set("checkpoint.keep_last=6");
    OnDevices(job, Late(7, ++eager_max));
    const std::string what = ckpt::ToString(mesh);
    const auto outcomes = job.Run();
    EXPECT_THAT(outcomes, AllEndWith(kExitFinished))
        << what << ": " << outcomes[0].message;
    EXPECT_EQ(FirstDifference(ReferenceMetrics(), job.Metrics()), "") << what;
    ExpectReferenceDigests(job, what);
  }
}

TEST(DeviceTrainTest, CodedSavesAndSharedFilesToo) {
  for (const char* how : {"checkpoint.codec=zstd", "checkpoint.files=1",
                          "checkpoint.arena_mb=1"}) {
    TrainJob job;
    job.mesh.dp = 2;
    job.Set("checkpoint.interval=1");
    job.Set("checkpoint.keep_last=6");
    job.Set(how);
    OnDevices(job, Late(3, 1));
    LeaveAtLook(job, 5);
    EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart)) << how;
    job.signals = nullptr;
    EXPECT_THAT(job.Run(), AllEndWith(kExitFinished)) << how;
    EXPECT_EQ(FirstDifference(ReferenceMetrics(), job.Metrics()), "") << how;
    ExpectReferenceDigests(job, how);
  }
}

TEST(DeviceTrainTest, SavedOnADeviceItGoesOnOnTheProcessorAndBack) {
  TrainJob job;
  job.Set("checkpoint.keep_last=6");
  OnDevices(job, Late(11, 2));
  job.mesh.dp = 3;
  LeaveAtLook(job, 3);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  job.each = nullptr;
  job.mesh = {.pp = 2};
  LeaveAtLook(job, 4);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  OnDevices(job, Late(12, 1));
  job.mesh = {.dp = 2};
  job.signals = nullptr;
  EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));

  const auto lines = job.Metrics();
  std::set<std::string> layouts;
  for (const MetricsLine& line : lines) layouts.insert(line.layout);
  EXPECT_EQ(layouts.size(), 3u);
  EXPECT_EQ(FirstDifference(ReferenceMetrics(), lines), "");
  ExpectReferenceDigests(job, "to and fro");
}

// Rows of parts of other ranks, which go through windows and messages.
TEST(DeviceTrainTest, WhatIsLoadedOnAnotherTpIsWhatWasSaved) {
  TrainJob job;
  job.Set("checkpoint.keep_last=20");
  LeaveAtLook(job, 6);
  EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
  const std::string saved = Digests(job)[4];
  ASSERT_NE(saved, "");
  job.options.resume = "4";
  int incarnation = 1;
  for (const ckpt::Mesh& mesh :
       {ckpt::Mesh{.tp = 2}, ckpt::Mesh{.tp = 2, .dp = 2}, ckpt::Mesh{}}) {
    OnDevices(job, Late(5, incarnation));
    job.mesh = mesh;
    job.signals = [](int, int look) {
      return look == 2   ? SignalAction::kSave
             : look <= 2 ? SignalAction::kNone
                         : SignalAction::kSaveAndLeave;
    };
    EXPECT_THAT(job.Run(), AllEndWith(kExitSavedRestart));
    ++incarnation;
    EXPECT_EQ(
        job.DigestOf(absl::StrFormat("step-000000004.i%04d.a01", incarnation)),
        saved)
        << ckpt::ToString(mesh);
  }
}

TEST(DeviceTrainTest, WeightsAloneAreAStartThereToo) {
  TrainJob donor;
  donor.Set("train.steps=2");
  EXPECT_THAT(donor.Run(), AllEndWith(kExitFinished));
  for (const char* compute :
       {"numerics.compute=bf16", "numerics.compute=f32"}) {
    std::vector<MetricsLine> on_processor;
    for (const bool device : {false, true}) {
      TrainJob job;
      job.mesh.dp = 2;
      job.Set("train.steps=3");
      job.options.init_from = donor.options.run_dir;
      job.options.init_weights_only = true;
      if (device) OnDevices(job, Late(2, 1));
      EXPECT_THAT(job.Run(), AllEndWith(kExitFinished)) << compute;
      if (!device) on_processor = job.Metrics();
      EXPECT_EQ(FirstDifference(on_processor, job.Metrics()), "") << compute;
    }
  }
}

// Nothing but a missing wait lets these digests differ.
TEST(DeviceTrainTest, CopiesThatNobodyWaitsForAreNoticed) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a race, made on purpose";
#endif
  bool noticed = false;
  for (uint64_t seed = 1; seed <= 5 && !noticed; ++seed) {
    TrainJob job;
    job.Set("checkpoint.interval=1");
    job.Set("checkpoint.keep_last=6");
    OnDevices(job, Late(seed, 1));
    const auto on_device = job.each;
    job.each = [&](int rank, TrainOptions& options, TrainEnv& env) {
      on_device(rank, options, env);
      env.copier_canary = DeviceCopier::Canary::kNoCopyEvent;
    };
    EXPECT_THAT(job.Run(), AllEndWith(kExitFinished));
    for (const auto& [step, digest] : Digests(job)) {
      noticed |= digest != ReferenceDigests().at(step);
    }
  }
  EXPECT_TRUE(noticed);
}

}  // namespace
}  // namespace holdfast::trainer
