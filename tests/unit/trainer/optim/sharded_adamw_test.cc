// The update of owned blocks: the same bits whoever owns them, decay for
// matrices only, blocks in order. And the plan's example of two replicas.

#include "trainer/optim/sharded_adamw.h"

#include <cmath>
#include <memory>
#include <vector>

#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/support/tiny_model.h"
#include "trainer/parallel/gradient_reduce.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ckpt::kBlockElements;
using tests::TinyLayout;
using tests::TinyModel;

ModelConfig Model() {
  ModelConfig model = TinyModel(/*tied=*/false);
  model.vocab = 301;  // Four blocks a table.
  return model;
}

// Masters and gradients of all blocks of a rank, as functions of the index.
struct Arrays {
  explicit Arrays(int64_t blocks)
      : weight(blocks * kBlockElements),
        master(weight.size()),
        exp_avg(weight.size()),
        exp_avg_sq(weight.size()),
        gradient(weight.size()) {
    for (size_t i = 0; i < master.size(); ++i) {
      const auto draw = [&](uint64_t stream) {
        return static_cast<float>(ckpt::Philox64(1, stream, i) >> 40) *
                   0x1p-23f -
               1.0f;
      };
      master[i] = draw(1);
      gradient[i] = draw(2);
    }
  }
  OwnedMemory From(int64_t block) {
    const int64_t at = block * kBlockElements;
    return {.weight = weight.data() + at,
            .master = master.data() + at,
            .exp_avg = exp_avg.data() + at,
            .exp_avg_sq = exp_avg_sq.data() + at,
            .gradient = gradient.data() + at};
  }

  std::vector<float> weight, master, exp_avg, exp_avg_sq, gradient;
};

TEST(ShardedAdamWTest, OwnedRunsOfAllMembersAreTheUpdatedBlocksOnce) {
  for (const bool tied : {false, true}) {
    ModelConfig model = Model();
    model.tied = tied;
    const auto layout = TinyLayout(model, ComputeType::kF32,
                                   {.tp = 2, .pp = 2, .dp = 3}, {1, 1});
    for (int pp = 0; pp < 2; ++pp) {
      int64_t next = 0;
      for (int dp = 0; dp < 3; ++dp) {
        const ckpt::BlockRange owned = layout->OwnedBlocks(1, pp, dp);
        int64_t next_owned = 0;
        for (const OwnedRun& run :
             OwnedRuns(*layout, {.tp = 1, .dp = dp, .pp = pp})) {
          EXPECT_EQ(run.first, next_owned);
          EXPECT_EQ(owned.first + run.first, next);
          next_owned += run.count;
          next += run.count;
          // On TP rank 1 what is not decayed is a norm, and a replica.
          EXPECT_EQ(run.replica, !run.decayed);
        }
        EXPECT_EQ(next_owned, owned.count);
      }
      EXPECT_EQ(next, layout->UpdatedBlockCount(1, pp));
    }
  }
}

TEST(ShardedAdamWTest, AnyDivisionOverMembersGivesTheSameBits) {
  const OptimConfig optim = {.lr = 0.01, .weight_decay = 0.1};
  const auto train = [&](int dp) {
    const auto layout = TinyLayout(Model(), ComputeType::kF32, {.dp = dp});
    Arrays arrays(layout->BlockCount(0, 0));
    for (int member = 0; member < dp; ++member) {
      const ShardedAdamW adamw(optim, ComputeType::kF32,
                               OwnedRuns(*layout, {.dp = member}));
      const int64_t first = layout->OwnedBlocks(0, 0, member).first;
      for (int64_t step = 1; step <= 3; ++step) {
        adamw.Update(kernels::CpuStream(), arrays.From(first), step, optim.lr,
                     0.5f, nullptr);
      }
    }
    return arrays;
  };
  const Arrays whole = train(1);
  for (const int dp : {2, 3, 5}) {
    const Arrays divided = train(dp);
    EXPECT_EQ(divided.master, whole.master) << "dp " << dp;
    EXPECT_EQ(divided.weight, whole.weight) << "dp " << dp;
    EXPECT_EQ(divided.exp_avg_sq, whole.exp_avg_sq) << "dp " << dp;
  }
}

TEST(ShardedAdamWTest, NormsDoNotDecay) {
  const OptimConfig optim = {.lr = 0.1, .weight_decay = 0.5};
  const auto layout = TinyLayout(Model(), ComputeType::kF32, {});
  Arrays arrays(layout->BlockCount(0, 0));
  // Without a gradient only the decay moves a weight.
  std::fill(arrays.gradient.begin(), arrays.gradient.end(), 0.0f);
  const std::vector<float> before = arrays.master;
  const ShardedAdamW adamw(optim, ComputeType::kF32, OwnedRuns(*layout, {}));
  adamw.Update(kernels::CpuStream(), arrays.From(0), 1, optim.lr, 1.0f,
               nullptr);
  int norms = 0;
  for (const ckpt::LocalTensor& local : layout->TensorsOf(0, 0)) {
    const bool matrix = local.part.dimensions > 1;
    const int64_t at = local.first_block * kBlockElements;
    norms += !matrix;
    EXPECT_NEAR(arrays.master[at] / before[at], matrix ? 0.95 : 1.0, 1e-6);
  }
  EXPECT_EQ(norms, 5);
}

// Two replicas, parameter 10, gradients 2 and 4: the mean is 3, and SGD at rate
// 0.1 makes 9.7 of both. Each gradient comes weighted by one half, as the loss
// weights its tokens, so the reduction is a sum; one member owns the block, the
// other gets the result.
TEST(ShardedAdamWTest, TwoReplicasStepByTheMeanOfTheirGradients) {
  float parameters[2] = {10.0f, 10.0f};
  const float gradients[2] = {2.0f, 4.0f};
  const auto run = [&](Collectives& dp) -> absl::Status {
    const int member = dp.rank();
    const auto device = kernels::NewCpuDevice();
    const auto on_device = NewHostedCollectives(dp, *device);
    std::vector<float> sum = {gradients[member] * 0.5f};
    HF_ASSIGN_OR_RETURN(
        const std::unique_ptr<GradientReducer> reducer,
        GradientReducer::Create(*on_device, PlanOwnerJoin(2, 2),
                                {{0, 1}, {1, 0}}, *device, ReduceLimits{}));
    const std::span<float> pieces[] = {std::span<float>(sum)};
    const std::span<float> owned =
        std::span<float>(sum).first(member == 0 ? 1 : 0);
    HF_RETURN_IF_ERROR(reducer->Reduce(pieces, owned, kernels::CpuStream()));
    if (member == 0) {
      EXPECT_EQ(sum[0], 3.0f);
      parameters[0] -= 0.1f * sum[0];
    }
    return dp.Broadcast(Bytes(std::span<float>(&parameters[member], 1)), 0);
  };
  const absl::Status status = RunInprocRanks(2, run);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FLOAT_EQ(parameters[0], 9.7f);
  EXPECT_EQ(parameters[1], parameters[0]);
}

}  // namespace
}  // namespace holdfast::trainer
