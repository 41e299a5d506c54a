// What DESIGN section 4 promises of a step: the same bits for every DP and PP.
// Each case trains the undivided model and a divided one, on threads as ranks,
// and compares losses, gradient norms, an evaluation and every stored element
// bit for bit.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/step_rig.h"

namespace holdfast::trainer {
namespace {

using tests::FirstDifference;
using tests::RunOptions;
using tests::RunRecord;
using tests::TinyModel;
using tests::TrainTiny;

struct Numerics {
  bool tied;
  ComputeType compute;
};

class StepBitsTest : public testing::TestWithParam<Numerics> {
 protected:
  RunOptions Options(int tp = 1) const {
    RunOptions options;
    options.model = TinyModel(GetParam().tied);
    options.model.layers = 3;
    // Its table has four blocks: owners are cut inside a tensor.
    options.model.vocab = 301;
    options.compute = GetParam().compute;
    options.mesh.tp = tp;
    options.eval_microbatches = 7;
    return options;
  }

  // Against PP 1, DP 1 at the same TP.
  void ExpectSameBits(RunOptions options, const std::vector<ckpt::Mesh>& meshes,
                      const std::vector<std::vector<int>>& stages = {}) {
    const RunRecord whole = TrainTiny(options);
    EXPECT_GT(whole.eval_tokens, 0);
    for (size_t i = 0; i < meshes.size(); ++i) {
      options.mesh = meshes[i];
      options.stages = i < stages.size() ? stages[i] : std::vector<int>{};
      EXPECT_EQ(FirstDifference(whole, TrainTiny(options)), "")
          << ckpt::ToString(meshes[i]);
    }
  }
};

TEST_P(StepBitsTest, DataParallelMembersGiveTheBitsOfOne) {
  // Three members share four leaves unequally.
  ExpectSameBits(Options(), {{.dp = 2}, {.dp = 3}, {.dp = 4}});
}

TEST_P(StepBitsTest, StagesGiveTheBitsOfOneEvenOrNot) {
  ExpectSameBits(Options(), {{.pp = 2}, {.pp = 2}, {.pp = 3}},
                 {{1, 2}, {2, 1}, {1, 1, 1}});
}

TEST_P(StepBitsTest, BothTogetherToo) {
  ExpectSameBits(Options(), {{.pp = 2, .dp = 2},
                             {.pp = 2, .dp = 3},
                             {.pp = 3, .dp = 2},
                             {.pp = 2, .dp = 4}});
}

TEST_P(StepBitsTest, AtTwoTensorParallelRanksTheSame) {
  RunOptions options = Options(/*tp=*/2);
  options.steps = 2;
  ExpectSameBits(
      options,
      {{.tp = 2, .dp = 3}, {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2, .dp = 2}});
}

TEST_P(StepBitsTest, LeavesThatAreNoPowerOfTwo) {
  RunOptions options = Options();
  options.virtual_dp = 6;
  options.global_seqs = 12;
  options.steps = 2;
  ExpectSameBits(options,
                 {{.dp = 2}, {.dp = 4}, {.dp = 5}, {.pp = 2, .dp = 6}});
}

// Buckets of a page: every part of a stage travels by itself.
TEST_P(StepBitsTest, WhatTravelsBesideTheWorkChangesNoBit) {
  RunOptions options = Options();
  options.steps = 2;
  options.overlap = {.grad_reduce = true, .param_gather = true, .bucket_kb = 4};
  ExpectSameBits(options, {{.dp = 2}, {.dp = 3}, {.pp = 2, .dp = 2}});
  options.mesh.tp = 2;
  options.overlap.bucket_kb = 64;
  ExpectSameBits(options, {{.tp = 2, .dp = 2}});
}

INSTANTIATE_TEST_SUITE_P(
    All, StepBitsTest,
    testing::Values(Numerics{false, ComputeType::kF32},
                    Numerics{true, ComputeType::kF32},
                    Numerics{false, ComputeType::kBf16},
                    Numerics{true, ComputeType::kBf16}),
    [](const auto& info) {
      return std::string(info.param.tied ? "Tied" : "Untied") +
             (info.param.compute == ComputeType::kBf16 ? "Bf16" : "F32");
    });

}  // namespace
}  // namespace holdfast::trainer
