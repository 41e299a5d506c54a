// What is known of a step before it runs: memory by kind against the ledger of
// DESIGN section 3, and the numbers that are refused. That a runner takes what
// the plan says is checked in every run of tests/support/step_rig.cc.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/step_rig.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;
using tests::RunOptions;
using tests::StepOptionsOf;

RunOptions Tiny() {
  RunOptions options;
  options.model = tests::TinyModel(/*tied=*/false);
  return options;
}

TEST(StepPlanTest, ResidentStateIsSixAndTwelveByDpBytesAParameter) {
  // Large enough that half-empty blocks do not matter.
  RunOptions options;
  options.model = {.layers = 4,
                   .hidden = 256,
                   .heads = 4,
                   .kv_heads = 4,
                   .ffn = 768,
                   .vocab = 4096,
                   .seq_len = 16};
  options.compute = ComputeType::kBf16;
  options.virtual_dp = 8;
  options.global_seqs = 8;
  for (const int dp : {1, 2, 8}) {
    options.mesh.dp = dp;
    const auto layout = tests::LayoutOf(options);
    for (int rank = 0; rank < dp; ++rank) {
      const auto plan = StepRunner::PlanMemory(StepOptionsOf(options, *layout),
                                               ckpt::Rank{rank});
      ASSERT_TRUE(plan.ok()) << plan.status();
      const double resident = static_cast<double>(
          plan->weights + plan->gradients + plan->optimizer);
      const double parameters =
          static_cast<double>(ParameterCount(options.model));
      EXPECT_NEAR(resident / parameters, 6.0 + 12.0 / dp,
                  0.005 * (6.0 + 12.0 / dp));
      // log2(8 / dp) further sums of four bytes.
      const double sums = std::log2(8.0 / dp);
      EXPECT_NEAR(static_cast<double>(plan->live_sums) / parameters, 4 * sums,
                  0.05);
    }
  }
}

TEST(StepPlanTest, InFlightMicrobatchesBoundTheActivationsOfAStage) {
  RunOptions options = Tiny();
  options.model.layers = 4;
  options.mesh.pp = 4;
  const auto layout = tests::LayoutOf(options);
  std::vector<int64_t> activations;
  for (int stage = 0; stage < 4; ++stage) {
    const auto plan =
        StepRunner::PlanMemory(StepOptionsOf(options, *layout),
                               ckpt::RankAt(options.mesh, {.pp = stage}));
    ASSERT_TRUE(plan.ok());
    activations.push_back(plan->activations);
  }
  EXPECT_NEAR(static_cast<double>(activations[1]) / activations[2], 1.5, 0.02);
  EXPECT_GT(activations[0], activations[1]);
  EXPECT_GT(activations[2], activations[3]);
}

TEST(StepPlanTest, RefusesNumbersThatDoNotFitBeforeAnythingStarts) {
  const auto refusal = [](const RunOptions& options) {
    const auto layout = tests::LayoutOf(options);
    const auto plan =
        StepRunner::PlanMemory(StepOptionsOf(options, *layout), ckpt::Rank{0});
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  };
  RunOptions options = Tiny();
  options.micro_seqs = 3;
  EXPECT_THAT(refusal(options), HasSubstr("batch.global_seqs = 8"));
  options = Tiny();
  options.virtual_dp = 3;
  EXPECT_THAT(refusal(options), HasSubstr("numerics.virtual_dp = 3 does not"));
  options = Tiny();
  options.virtual_dp = 2;
  options.mesh.dp = 4;
  EXPECT_THAT(refusal(options),
              HasSubstr("dp = 4 is above numerics.virtual_dp = 2"));
  options = Tiny();
  options.invariant = false;
  options.mesh.dp = 9;
  EXPECT_THAT(refusal(options), HasSubstr("dp = 9 members share 8"));
}

// Counts the pinned memory that is taken.
class Counting final : public kernels::Device {
 public:
  explicit Counting(std::unique_ptr<kernels::FakeDevice> below)
      : below_(std::move(below)) {}

  int64_t pinned() const { return pinned_; }

  std::string_view name() const override { return below_->name(); }
  absl::StatusOr<kernels::Buffer> Allocate(kernels::MemorySpace space,
                                           size_t bytes) override {
    if (space == kernels::MemorySpace::kPinned) {
      pinned_ += static_cast<int64_t>(bytes);
    }
    return below_->Allocate(space, bytes);
  }
  void Free(const kernels::Buffer& buffer) override {
    if (buffer.space == kernels::MemorySpace::kPinned) {
      pinned_ -= static_cast<int64_t>(buffer.bytes);
    }
    below_->Free(buffer);
  }
  std::unique_ptr<kernels::Stream> NewStream() override {
    return below_->NewStream();
  }
  void Copy(const kernels::Buffer& dst, const kernels::Buffer& src,
            kernels::Stream& stream) override {
    below_->Copy(dst, src, stream);
  }
  kernels::Event Record(kernels::Stream& stream) override {
    return below_->Record(stream);
  }
  void WaitFor(kernels::Stream& stream, kernels::Event event) override {
    below_->WaitFor(stream, event);
  }
  bool Query(kernels::Event event) override { return below_->Query(event); }
  void Sync(kernels::Event event) override { below_->Sync(event); }
  void Sync(kernels::Stream& stream) override { below_->Sync(stream); }
  absl::Status status() const override { return below_->status(); }

 private:
  const std::unique_ptr<kernels::FakeDevice> below_;
  int64_t pinned_ = 0;
};

TEST(StepPlanTest, PinnedMemoryOfMessagesIsAboutWhatWasPlanned) {
  for (const ckpt::Mesh& mesh :
       {ckpt::Mesh{.dp = 3}, ckpt::Mesh{.tp = 2, .pp = 2, .dp = 2}}) {
    RunOptions options = Tiny();
    options.model.tied = true;
    options.model.vocab = 12'000;  // 1.2 MB of table, as a gradient.
    options.global_seqs = 4;
    options.mesh = mesh;
    options.steps = 2;
    std::vector<Counting*> devices(static_cast<size_t>(mesh.world()));
    std::vector<int64_t> taken(devices.size()), planned(devices.size());
    options.device = [&](int rank) -> std::unique_ptr<kernels::Device> {
      auto fake = kernels::NewFakeDevice({.device_bytes = size_t{256} << 20});
      EXPECT_TRUE(fake.ok());
      auto device = std::make_unique<Counting>(*std::move(fake));
      devices[static_cast<size_t>(rank)] = device.get();
      return device;
    };
    const auto layout = tests::LayoutOf(options);
    options.before_step = [&](int rank, int64_t step, StepRunner&) {
      const auto index = static_cast<size_t>(rank);
      if (step != 2) return;
      taken[index] = devices[index]->pinned();
      StepOptions step_options = StepOptionsOf(options, *layout);
      step_options.plan_for_gpu = true;
      planned[index] = *StepRunner::PlanPinned(step_options, ckpt::Rank{rank});
    };
    tests::TrainTiny(options);
    for (size_t rank = 0; rank < taken.size(); ++rank) {
      // With the stage's own pinned memory.
      EXPECT_LE(taken[rank], planned[rank] + (1 << 20))
          << ckpt::ToString(mesh) << " rank " << rank;
      EXPECT_GE(taken[rank], planned[rank] / 2)
          << ckpt::ToString(mesh) << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace holdfast::trainer
