// Training on the device against the processor: the same model, the same
// samples, twenty steps.
//
// The processor's and the GPU's matrix products add in different orders, so
// losses agree to rounding and not to the bit. After one step what differs is
// that rounding alone: 2^-24 grows to some 1e-6 over the sums of the tiny model
// in FP32, and 2^-9 to some 1e-3 in BF16. Each further step feeds differences
// back; AdamW divides by the gradient's own size, so they grow faster than the
// gradients' do. Twenty steps stay within the bounds below by a wide margin on
// the fake device (exactly equal) and leave room for a GPU's other order.

#include <algorithm>
#include <cmath>
#include <memory>

#include "ckpt/base/check.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/device/test_device.h"
#include "tests/support/step_rig.h"
#include "tests/support/tiny_model.h"

namespace holdfast::tests {
namespace {

RunOptions Tiny(trainer::ComputeType compute) {
  RunOptions options;
  options.model = TinyModel(/*tied=*/true);
  options.compute = compute;
  options.steps = TestDeviceIsFake() ? 2 : 20;
  options.eval_microbatches = 3;
  return options;
}

std::unique_ptr<kernels::Device> TestDeviceOrDie(int) {
  auto device = OpenTestDevice();
  HF_CHECK(device.ok(), "%s", device.status().ToString());
  return *std::move(device);
}

struct Bounds {
  double first_loss;  // Relative, of the first step.
  double loss;        // Of the worst later one.
  double norm;
};

void ExpectFollows(const RunRecord& device, const RunRecord& cpu,
                   const Bounds& bounds, const std::string& what) {
  const auto apart = [](double a, double b) {
    return std::abs(a - b) / std::max(std::abs(b), 1e-30);
  };
  ASSERT_EQ(device.losses.size(), cpu.losses.size());
  EXPECT_LE(apart(device.losses[0], cpu.losses[0]), bounds.first_loss);
  double loss = 0;
  double norm = 0;
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    loss = std::max(loss, apart(device.losses[i], cpu.losses[i]));
    norm = std::max(norm, apart(device.grad_norms[i], cpu.grad_norms[i]));
    EXPECT_FALSE(device.skipped[i]) << "step " << i + 1;
  }
  RecordFigure(what + " loss apart", "relative", loss);
  RecordFigure(what + " norm apart", "relative", norm);
  EXPECT_LE(loss, bounds.loss);
  EXPECT_LE(norm, bounds.norm);
  EXPECT_LE(apart(device.eval_loss, cpu.eval_loss), bounds.loss);
  if (TestDeviceIsFake()) {
    EXPECT_EQ(FirstDifference(device, cpu), "");
  } else {
    EXPECT_LT(device.losses.back(), device.losses.front()) << "learned nothing";
  }
}

class TrainingOnDevice : public OnDevice {};

TEST_F(TrainingOnDevice, TheTinyModelFollowsTheProcessorInFp32) {
  RunOptions options = Tiny(trainer::ComputeType::kF32);
  const RunRecord cpu = TrainTiny(options);
  options.device = TestDeviceOrDie;
  ExpectFollows(TrainTiny(options), cpu, {1e-5, 2e-3, 2e-2}, "fp32");
}

TEST_F(TrainingOnDevice, TheTinyModelFollowsTheProcessorInBf16) {
  RunOptions options = Tiny(trainer::ComputeType::kBf16);
  const RunRecord cpu = TrainTiny(options);
  options.device = TestDeviceOrDie;
  ExpectFollows(TrainTiny(options), cpu, {5e-3, 5e-2, 2e-1}, "bf16");
}

TEST_F(TrainingOnDevice, TheTinyModelFollowsTheProcessorTwiceToTheSameBits) {
  RunOptions options = Tiny(trainer::ComputeType::kBf16);
  options.device = TestDeviceOrDie;
  const RunRecord once = TrainTiny(options);
  EXPECT_EQ(FirstDifference(TrainTiny(options), once), "");
}

TEST_F(TrainingOnDevice, EightRanksShareOneCardAsTheyShareAProcessor) {
  RunOptions options = Tiny(trainer::ComputeType::kF32);
  options.mesh = {.tp = 2, .pp = 2, .dp = 2};
  const RunRecord cpu = TrainTiny(options);
  options.shared_device = &device();
  ExpectFollows(TrainTiny(options), cpu, {1e-5, 2e-3, 2e-2},
                "tp2-pp2-dp2 fp32");
}

// What the ranks exchange stays on the card, and travels beside the work: not
// another bit.
TEST_F(TrainingOnDevice, EightRanksShareOneCardAndItsMemory) {
  for (const auto compute :
       {trainer::ComputeType::kF32, trainer::ComputeType::kBf16}) {
    if (TestDeviceIsFake() && compute == trainer::ComputeType::kF32) continue;
    RunOptions options = Tiny(compute);
    options.mesh = {.tp = 2, .pp = 2, .dp = 2};
    options.device = TestDeviceOrDie;
    const RunRecord by_the_host = TrainTiny(options);
    options.shared_device = &device();
    EXPECT_EQ(FirstDifference(TrainTiny(options), by_the_host), "");
    options.overlap = {true, true, /*bucket_kb=*/4};
    EXPECT_EQ(FirstDifference(TrainTiny(options), by_the_host), "");
  }
}

TEST_F(TrainingOnDevice, EightRanksShareOneCardWithTheBitsOfOneMember) {
  // DP and PP change no bit on a device either: the same kernels, the same
  // tree. TP stays.
  RunOptions options = Tiny(trainer::ComputeType::kBf16);
  options.shared_device = &device();
  options.mesh = {.tp = 2};
  const RunRecord two = TrainTiny(options);
  options.mesh = {.tp = 2, .pp = 2, .dp = 2};
  EXPECT_EQ(FirstDifference(TrainTiny(options), two), "");
}

}  // namespace
}  // namespace holdfast::tests
