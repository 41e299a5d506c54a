// One step by its parts: loss weights, the reduction, clipping, the gate, and
// steps that must not be taken.

#include "trainer/step.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ckpt/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/step_rig.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ::testing::ElementsAre;
using tests::FirstDifference;
using tests::RunOptions;
using tests::RunRecord;
using tests::StepOptionsOf;
using tests::TinyModel;
using tests::TinySource;
using tests::TrainTiny;

RunOptions Tiny(bool tied = false) {
  RunOptions options;
  options.model = TinyModel(tied);
  return options;
}

// One rank with a runner, for tests that look inside.
class LoneRunner {
 public:
  explicit LoneRunner(const RunOptions& options)
      : options_(options),
        layout_(tests::LayoutOf(options)),
        world_(1),
        collectives_(world_.Join(0)),
        device_(kernels::NewCpuDevice()),
        source_(options.model, options.micro_seqs, options.seed) {
    auto mesh = SplitMesh(*collectives_, {});
    EXPECT_TRUE(mesh.ok()) << mesh.status();
    mesh_ = std::move(mesh).value();
    StepOptions step = StepOptionsOf(options, *layout_);
    step.mesh = &mesh_;
    step.device = device_.get();
    step.clock = &ckpt::RealClock();
    auto runner = StepRunner::Create(step);
    EXPECT_TRUE(runner.ok()) << runner.status();
    runner_ = std::move(runner).value();
    EXPECT_TRUE(runner_->Initialise(options.seed).ok());
  }

  StepResult Step(int64_t step, UpdateGate* gate = nullptr) {
    source_.BeginStep(step);
    auto result = runner_->RunStep(
        step,
        source_.CountingTokens(options_.global_seqs / options_.micro_seqs),
        source_, gate);
    EXPECT_TRUE(result.ok()) << result.status();
    return *result;
  }

  StepRunner& runner() { return *runner_; }
  std::vector<float> Master() {
    const kernels::Buffer& master =
        runner_->state().regions()[ckpt::kMasterRegion];
    return {master.as<float>(),
            master.as<float>() + master.bytes / sizeof(float)};
  }

 private:
  const RunOptions options_;
  const std::unique_ptr<ckpt::TrainLayout> layout_;
  InprocWorld world_;
  const std::unique_ptr<Collectives> collectives_;
  const std::unique_ptr<kernels::Device> device_;
  TinySource source_;
  MeshCollectives mesh_;
  std::unique_ptr<StepRunner> runner_;
};

// --- The sum over replicas

// The undivided run in plain numbers: the loss of a step is the sum over all
// counting tokens divided by their number, whatever microbatch and replica they
// are in. Every sequence here has a mask of its own, so a mean of means would
// differ.
TEST(StepTest, UnequalMasksWeighEveryCountingTokenTheSame) {
  RunOptions one = Tiny();
  one.virtual_dp = 1;
  one.micro_seqs = 8;  // One microbatch: the plain mean over its tokens.
  RunOptions divided = Tiny();
  divided.virtual_dp = 4;
  divided.micro_seqs = 1;
  divided.mesh.dp = 4;
  // The same tokens in both: a source that ignores how they are cut.
  class Fixed : public MicrobatchSource {
   public:
    Fixed(const ModelConfig& model, int64_t micro_seqs)
        : all_(model, 8, 3), rows_(micro_seqs * model.seq_len) {
      // Sequence s counts every (s + 1)-th token only.
      for (size_t i = 0; i < all_.mask.size(); ++i) {
        const size_t sequence = i / static_cast<size_t>(model.seq_len);
        all_.mask[i] = i % (sequence + 1) == 0;
      }
    }
    absl::StatusOr<Microbatch> Get(int64_t microbatch) override {
      const auto cut = [&](auto& values) {
        return std::span(values).subspan(
            static_cast<size_t>(microbatch * rows_),
            static_cast<size_t>(rows_));
      };
      return Microbatch{cut(all_.tokens), cut(all_.targets), cut(all_.mask)};
    }
    int64_t counting() const { return all_.counting(); }

   private:
    tests::TinyBatch all_;
    int64_t rows_;
  };
  const auto run = [](const RunOptions& options) {
    const auto layout = tests::LayoutOf(options);
    std::vector<float> losses(options.mesh.world());
    std::vector<float> norms(options.mesh.world());
    const absl::Status status =
        RunInprocRanks(options.mesh.world(), [&](Collectives& world) {
          auto mesh = SplitMesh(world, options.mesh);
          const auto device = kernels::NewCpuDevice();
          StepOptions step = StepOptionsOf(options, *layout);
          step.mesh = &*mesh;
          step.device = device.get();
          step.clock = &ckpt::RealClock();
          auto runner = StepRunner::Create(step);
          if (!runner.ok()) return runner.status();
          absl::Status initialised = (*runner)->Initialise(1);
          if (!initialised.ok()) return initialised;
          Fixed source(options.model, options.micro_seqs);
          auto result = (*runner)->RunStep(1, source.counting(), source, {});
          if (!result.ok()) return result.status();
          losses[world.rank()] = result->loss;
          norms[world.rank()] = result->grad_norm;
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return std::pair(losses[0], norms[0]);
  };
  const auto [loss, norm] = run(one);
  const auto [loss_divided, norm_divided] = run(divided);
  EXPECT_NEAR(loss_divided, loss, 1e-6f * loss);
  EXPECT_NEAR(norm_divided, norm, 1e-5f * norm);
}

TEST(StepTest, WithoutTheTreeNumbersAreCloseButBitsAreNotPromised) {
  RunOptions options = Tiny();
  options.steps = 4;
  const RunRecord tree = TrainTiny(options);
  options.invariant = false;
  const RunRecord plain = TrainTiny(options);
  options.mesh.dp = 3;  // 8 microbatches over 3 members: 2, 3, 3.
  const RunRecord divided = TrainTiny(options);
  for (size_t step = 0; step < tree.losses.size(); ++step) {
    EXPECT_NEAR(plain.losses[step], tree.losses[step], 1e-5);
    EXPECT_NEAR(divided.losses[step], tree.losses[step], 1e-5);
    EXPECT_NEAR(divided.grad_norms[step], tree.grad_norms[step], 1e-4);
  }
  // The comparison of the other tests can fail: these sums differ in order.
  EXPECT_NE(FirstDifference(plain, divided), "");
  EXPECT_NE(FirstDifference(plain, tree), "");
}

TEST(StepTest, TheSameRunTwiceGivesTheSameBits) {
  RunOptions options = Tiny(/*tied=*/true);
  options.mesh = {.tp = 2, .pp = 2, .dp = 2};
  EXPECT_EQ(FirstDifference(TrainTiny(options), TrainTiny(options)), "");
}

TEST(StepTest, TheNumberOfThreadsChangesNoBit) {
  RunOptions options = Tiny(/*tied=*/true);
  options.compute = ComputeType::kBf16;
  options.model.vocab = 900;  // Three tiles of logits: work for three threads.
  options.micro_seqs = 2;
  const int before = omp_get_max_threads();
  const auto masters = [&](int threads) {
    omp_set_num_threads(threads);
    LoneRunner lone(options);
    for (int64_t step = 1; step <= 2; ++step) lone.Step(step);
    return lone.Master();
  };
  const std::vector<float> of_one = masters(1);
  EXPECT_EQ(masters(2), of_one);
  EXPECT_EQ(masters(5), of_one);
  omp_set_num_threads(before);
}

TEST(StepTest, TheFakeDeviceTrainsToTheSameBits) {
  RunOptions options = Tiny(/*tied=*/true);
  options.mesh = {.pp = 2, .dp = 2};
  options.steps = 2;
  options.eval_microbatches = 3;
  const RunRecord cpu = TrainTiny(options);
  options.device = [](int rank) -> std::unique_ptr<kernels::Device> {
    kernels::FakeDeviceOptions fake;
    fake.seed = static_cast<uint64_t>(rank) + 1;
    fake.device_bytes = size_t{64} << 20;
    auto device = kernels::NewFakeDevice(fake);
    EXPECT_TRUE(device.ok()) << device.status();
    return std::move(device).value();
  };
  EXPECT_EQ(FirstDifference(cpu, TrainTiny(options)), "");
}

// Eight ranks on one device: how a whole mesh trains on a single card.
TEST(StepTest, RanksThatShareOneFakeDeviceTrainToTheBitsOfTheCpu) {
  for (const bool tied : {true, false}) {
    RunOptions options = Tiny(tied);
    options.mesh = {.tp = 2, .pp = 2, .dp = 2};
    options.steps = tied ? 2 : 1;
    options.global_seqs = 4;
    options.eval_microbatches = 3;
    const RunRecord cpu = TrainTiny(options);
    kernels::FakeDeviceOptions fake;
    fake.seed = tied ? 11 : 12;
    fake.device_bytes = size_t{64} << 20;
    auto device = kernels::NewFakeDevice(fake);
    ASSERT_TRUE(device.ok()) << device.status();
    options.shared_device = device->get();
    if (tied) options.overlap = {true, true, /*bucket_kb=*/4};
    EXPECT_EQ(FirstDifference(cpu, TrainTiny(options)), "");
  }
}

// --- Clipping, schedule, evaluation

TEST(StepTest, ReportsNormBeforeClippingRateOfTheStepAndTokens) {
  RunOptions options = Tiny();
  options.optim.clip_norm = 0.0;
  LoneRunner loose(options);
  options.optim.clip_norm = 1e-3;
  LoneRunner tight(options);
  const StepResult free = loose.Step(1);
  const StepResult clipped = tight.Step(1);
  EXPECT_EQ(clipped.grad_norm, free.grad_norm);
  EXPECT_GT(clipped.grad_norm, 1e-3f);
  EXPECT_DOUBLE_EQ(clipped.lr, 0.005);
  EXPECT_EQ(clipped.tokens, 8 * 11);
  EXPECT_EQ(clipped.loss_bits, std::bit_cast<uint32_t>(clipped.loss));
  EXPECT_EQ(clipped.fwd_ms.size(), 1u);
  EXPECT_GT(clipped.fwd_ms[0], 0.0f);
  EXPECT_GT(clipped.bwd_ms[0], 0.0f);
  // Moments took the clipped gradient: (1 - beta1) * g on the first step.
  const auto largest = [](LoneRunner& lone) {
    const kernels::Buffer& moment =
        lone.runner().state().regions()[ckpt::kExpAvgRegion];
    float value = 0.0f;
    for (size_t i = 0; i < moment.bytes / sizeof(float); ++i) {
      value = std::max(value, std::abs(moment.as<float>()[i]));
    }
    return value;
  };
  EXPECT_NEAR(largest(tight) / largest(loose), 1e-3f / free.grad_norm,
              1e-5f / free.grad_norm);
}

TEST(StepTest, TrainingLowersTheLossOnWhatItSees) {
  RunOptions options = Tiny();
  options.compute = ComputeType::kBf16;
  LoneRunner lone(options);
  TinySource source(options.model, options.micro_seqs, options.seed);
  source.BeginStep(5);
  const auto loss = [&] {
    const auto result = lone.runner().RunEval(8, source);
    EXPECT_TRUE(result.ok());
    return result->loss;
  };
  const double before = loss();
  for (int64_t step = 1; step <= 30; ++step) {
    const auto result =
        lone.runner().RunStep(step, source.CountingTokens(8), source, nullptr);
    ASSERT_TRUE(result.ok());
  }
  EXPECT_LT(loss(), before - 1.0);
}

TEST(StepTest, AnEvaluationChangesNothing) {
  RunOptions options = Tiny();
  LoneRunner with(options), without(options);
  TinySource source(options.model, options.micro_seqs, 99);
  with.Step(1);
  without.Step(1);
  ASSERT_TRUE(with.runner().RunEval(5, source).ok());
  EXPECT_EQ(with.Step(2).loss_bits, without.Step(2).loss_bits);
  EXPECT_EQ(with.Master(), without.Master());
}

// --- The gate

class RecordingGate : public UpdateGate {
 public:
  explicit RecordingGate(LoneRunner& lone) : lone_(lone) {}

  void BeforeUpdate(int64_t first, int64_t count) override {
    EXPECT_EQ(first, next_) << "blocks are asked for once, in order";
    next_ = first + count;
    // Nothing of these blocks has been stored to yet.
    const std::vector<float> master = lone_.Master();
    const auto begin = static_cast<size_t>(first * ckpt::kBlockElements);
    const auto end = static_cast<size_t>(next_ * ckpt::kBlockElements);
    untouched_ &= std::equal(master.begin() + begin, master.begin() + end,
                             before_.begin() + begin);
    touched_before_ |=
        first > 0 &&
        !std::equal(master.begin(), master.begin() + begin, before_.begin());
  }

  std::vector<float> before_;
  int64_t next_ = 0;
  bool untouched_ = true;
  bool touched_before_ = false;

 private:
  LoneRunner& lone_;
};

TEST(StepTest, TheGateIsAskedForEveryOwnedBlockBeforeItsFirstStore) {
  LoneRunner lone(Tiny());
  RecordingGate gate(lone);
  gate.before_ = lone.Master();
  lone.Step(1, &gate);
  EXPECT_EQ(gate.next_, lone.runner().state().shape().owned.count);
  EXPECT_TRUE(gate.untouched_);
  EXPECT_TRUE(gate.touched_before_) << "updates follow their own question";
}

// --- Steps that are not taken

TEST(StepTest, ANonFiniteGradientIsSkippedByAllRanksCountedAndReported) {
  RunOptions options = Tiny();
  options.mesh = {.pp = 2, .dp = 2};
  options.steps = 4;
  // One weight of one rank is a NaN during step 2 only; the owner's master,
  // untouched, gives the weight back at step 3.
  std::atomic<int> skipped{0};
  options.before_step = [&](int rank, int64_t step, StepRunner& runner) {
    const kernels::Buffer& weight =
        runner.state().regions()[ckpt::kWeightRegion];
    static thread_local float saved = 0.0f;
    if (rank == 1 && step == 2) {
      saved = weight.as<float>()[5];
      weight.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    }
    if (rank == 1 && step == 3) weight.as<float>()[5] = saved;
    if (step == 3) skipped += static_cast<int>(runner.skipped_steps());
  };
  const RunRecord run = TrainTiny(options);
  EXPECT_THAT(run.skipped, ElementsAre(false, true, false, false));
  EXPECT_EQ(skipped, 4) << "every rank counts it";
  for (const auto& [name, values] : run.stored) {
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
  }
}

TEST(StepTest, WithoutACountingTokenThereIsNoLossAndNoNan) {
  RunOptions options = Tiny();
  LoneRunner lone(options);
  class Masked : public TinySource {
   public:
    using TinySource::TinySource;
    absl::StatusOr<Microbatch> Get(int64_t microbatch) override {
      auto batch = TinySource::Get(microbatch);
      mask_.assign(batch->mask.size(), 0);
      batch->mask = mask_;
      return batch;
    }

   private:
    std::vector<uint8_t> mask_;
  };
  Masked source(options.model, options.micro_seqs, 1);
  const auto result = lone.runner().RunStep(1, 0, source, nullptr);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->loss, 0.0f);
  EXPECT_EQ(result->grad_norm, 0.0f);
  EXPECT_FALSE(result->skipped_nonfinite);
  EXPECT_TRUE(std::isnan(lone.runner().RunEval(2, source)->loss));
}

}  // namespace
}  // namespace holdfast::trainer
