// Training steps on the GPU's kernels, which the host runs, against the
// processor's: every kernel with the arguments that the model really gives it.
//
// Products are the same on both sides and the kernels differ by the order of
// sums alone, so the first loss agrees to FP32 rounding and a few steps stay
// near; BF16 may round single values the other way.

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/support/gpu_kernels_on_host.h"
#include "tests/support/step_rig.h"
#include "tests/support/tiny_model.h"

namespace holdfast::tests {
namespace {

double Apart(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-30);
}

struct Bounds {
  double first_loss, loss, norm;
};

void ExpectFollows(RunOptions options, const Bounds& bounds) {
  options.eval_microbatches = 2;
  const RunRecord cpu = TrainTiny(options);
  options.device = [](int) { return NewGpuKernelsOnHost(); };
  const RunRecord gpu = TrainTiny(options);
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  EXPECT_LE(Apart(gpu.losses[0], cpu.losses[0]), bounds.first_loss);
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    EXPECT_LE(Apart(gpu.losses[i], cpu.losses[i]), bounds.loss) << i;
    EXPECT_LE(Apart(gpu.grad_norms[i], cpu.grad_norms[i]), bounds.norm) << i;
  }
  EXPECT_LE(Apart(gpu.eval_loss, cpu.eval_loss), bounds.loss);
  // They are other kernels: not one value of the state would differ otherwise.
  EXPECT_NE(FirstDifference(gpu, cpu), "");
}

RunOptions Tiny(trainer::ComputeType compute, bool tied) {
  RunOptions options;
  options.model = TinyModel(tied);
  options.compute = compute;
  return options;
}

TEST(GpuKernelsTest, TrainAsTheProcessorsInFp32) {
  ExpectFollows(Tiny(trainer::ComputeType::kF32, /*tied=*/true),
                {1e-6, 1e-5, 1e-4});
}

TEST(GpuKernelsTest, TrainAsTheProcessorsInBf16) {
  ExpectFollows(Tiny(trainer::ComputeType::kBf16, /*tied=*/false),
                {1e-3, 5e-3, 5e-2});
}

TEST(GpuKernelsTest, TrainAsTheProcessorsOverRanks) {
  RunOptions options = Tiny(trainer::ComputeType::kBf16, /*tied=*/true);
  options.mesh = {.tp = 2, .pp = 2, .dp = 2};
  ExpectFollows(options, {1e-3, 5e-3, 5e-2});
}

// What a run promises on the processor holds for these kernels too: sums have
// one order, so layouts over DP and PP give the same bits.
TEST(GpuKernelsTest, LayoutsOverDpAndPpGiveTheSameBits) {
  RunOptions options = Tiny(trainer::ComputeType::kBf16, /*tied=*/true);
  options.device = [](int) { return NewGpuKernelsOnHost(); };
  const RunRecord one = TrainTiny(options);
  options.mesh = {.pp = 2, .dp = 2};
  EXPECT_EQ(FirstDifference(one, TrainTiny(options)), "");
}

}  // namespace
}  // namespace holdfast::tests
