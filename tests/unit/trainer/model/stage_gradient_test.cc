// The backward of a whole model against finite differences of its forward, in
// FP32: for every tensor a few elements and one random direction. Then what the
// step relies on: gradients add up over microbatches, masked tokens leave no
// trace, and memory is what the plan says.

#include <algorithm>
#include <cmath>
#include <vector>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "tests/support/tiny_model.h"

namespace holdfast::trainer {
namespace {

using tests::LoneStage;
using tests::TinyBatch;
using tests::TinyModel;

class StageGradientTest : public testing::TestWithParam<bool> {
 protected:
  StageGradientTest()
      : model_(TinyModel(/*tied=*/GetParam())),
        device_(kernels::NewCpuDevice()),
        lone_({.model = model_}, *device_),
        batch_(model_, 2, 5),
        weight_(1.0f / static_cast<float>(batch_.counting())) {
    // Norms of exactly one would hide a norm weight that is used twice.
    float* const weights = Weights();
    for (size_t t = 0; t < lone_.tensors.specs.size(); ++t) {
      if (lone_.tensors.specs[t].shape.size() > 1) continue;
      float* const norm = weights + lone_.OffsetOf(static_cast<int>(t));
      for (int64_t i = 0; i < model_.hidden; ++i) {
        norm[i] += 0.01f * static_cast<float>(i % 7);
      }
    }
  }

  float* Weights() {
    return lone_.state->regions()[ckpt::kWeightRegion].as<float>();
  }

  double MeanLoss() {
    return lone_.Forward(batch_, weight_) /
           static_cast<double>(batch_.counting());
  }

  // Of tensor t along `direction`, which has its elements.
  double Difference(int tensor, const std::vector<float>& direction) {
    float* const at = Weights() + lone_.OffsetOf(tensor);
    const std::vector<float> saved(at, at + direction.size());
    const auto loss_at = [&](float step) {
      for (size_t i = 0; i < direction.size(); ++i) {
        at[i] = saved[i] + step * direction[i];
      }
      return MeanLoss();
    };
    // The fourth-order central difference: a step this wide keeps FP32 rounding
    // of the loss small.
    const float h = 0.02f;
    const double slope =
        (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) /
        (12.0 * h);
    std::copy(saved.begin(), saved.end(), at);
    return slope;
  }

  // What Backward says about the same direction; a tied head's accumulator is
  // added to the table's.
  double Predicted(int tensor, const std::vector<float>& direction) {
    const int64_t offset = lone_.OffsetOf(tensor);
    const float* const gradient = lone_.state->gradients(0);
    const bool tied_table = model_.tied && tensor == lone_.tensors.embedding;
    const int64_t second =
        lone_.state->shape().tied_head_blocks.first * ckpt::kBlockElements;
    double sum = 0.0;
    for (size_t i = 0; i < direction.size(); ++i) {
      double slope = gradient[offset + i];
      if (tied_table) slope += gradient[second + i];
      sum += slope * direction[i];
    }
    return sum;
  }

  ModelConfig model_;
  std::unique_ptr<kernels::Device> device_;
  LoneStage lone_;
  TinyBatch batch_;
  float weight_;
};

TEST_P(StageGradientTest, BackwardAgreesWithFiniteDifferencesInEveryTensor) {
  MeanLoss();
  lone_.Backward();
  for (size_t t = 0; t < lone_.tensors.specs.size(); ++t) {
    const ckpt::TensorSpec& spec = lone_.tensors.specs[t];
    SCOPED_TRACE(spec.name);
    const int64_t elements = ckpt::WholeBox(spec.shape).elements();
    double length = 0.0;
    std::vector<float> direction(elements);
    for (int64_t i = 0; i < elements; ++i) {
      const auto bits = ckpt::Philox64(9, t, i) >> 40;
      direction[i] = static_cast<float>(bits) * 0x1p-23f - 1.0f;
      length += direction[i] * direction[i];
    }
    for (float& value : direction) {
      value /= static_cast<float>(std::sqrt(length));
    }
    const double expected = Difference(static_cast<int>(t), direction);
    EXPECT_NEAR(Predicted(static_cast<int>(t), direction), expected,
                2e-5 + 1e-3 * std::abs(expected));
    for (const int64_t element : {int64_t{0}, elements / 2, elements - 1}) {
      std::vector<float> one(elements, 0.0f);
      one[element] = 1.0f;
      const double at_one = Difference(static_cast<int>(t), one);
      EXPECT_NEAR(Predicted(static_cast<int>(t), one), at_one,
                  2e-5 + 1e-3 * std::abs(at_one))
          << "element " << element;
    }
  }
}

TEST_P(StageGradientTest, PadRowsGetNoGradientAndBlocksEndInZeros) {
  MeanLoss();
  lone_.Backward();
  const float* const gradient = lone_.state->gradients(0);
  for (const ckpt::LocalTensor& local : lone_.state->tensors()) {
    const int64_t first = local.first_block * ckpt::kBlockElements;
    for (int64_t i = local.elements;
         i < local.block_count * ckpt::kBlockElements; ++i) {
      ASSERT_EQ(gradient[first + i], 0.0f)
          << lone_.tensors.specs[local.tensor].name << " " << i;
    }
  }
}

TEST_P(StageGradientTest, MaskedTargetsLeaveNoTrace) {
  MeanLoss();
  lone_.Backward();
  const float* const gradient = lone_.state->gradients(0);
  const int64_t count = lone_.state->gradient_elements();
  const std::vector<float> before(gradient, gradient + count);
  for (size_t i = 0; i < batch_.mask.size(); ++i) {
    if (batch_.mask[i] == 0) batch_.targets[i] = (batch_.targets[i] + 1) % 37;
  }
  lone_.ZeroGradients();
  MeanLoss();
  lone_.Backward();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), gradient));
}

TEST_P(StageGradientTest, ASecondBackwardAddsToTheFirst) {
  MeanLoss();
  lone_.Backward();
  const float* const gradient = lone_.state->gradients(0);
  const int64_t count = lone_.state->gradient_elements();
  const std::vector<float> once(gradient, gradient + count);
  MeanLoss();
  lone_.Backward();
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_NEAR(gradient[i], 2 * once[i], 1e-5f * std::abs(once[i]) + 1e-9f);
  }
}

TEST_P(StageGradientTest, MemoryIsWhatThePlanSays) {
  for (const ComputeType compute : {ComputeType::kBf16, ComputeType::kF32}) {
    for (const int slots : {1, 3}) {
      LoneStage lone({.model = model_, .compute = compute, .slots = slots},
                     *device_);
      StageOptions options;
      options.model = model_;
      options.compute = compute;
      options.layers = model_.layers;
      options.micro_seqs = 2;
      options.slots = slots;
      const StageMemory plan = Stage::Plan(options);
      EXPECT_EQ(lone.stage->memory().activations, plan.activations);
      EXPECT_EQ(lone.stage->memory().buffers, plan.buffers);
      EXPECT_EQ(lone.stage->memory().gpu_scratch, plan.gpu_scratch);
      EXPECT_GE(plan.gpu_scratch, 4 * 2 * model_.seq_len * model_.heads);
      EXPECT_GT(plan.activations, 0);
    }
  }
}

// One rank of 8 of the full-size target: 16 heads of one key head, whose
// gradients are divided into 16 parts on a GPU.
TEST(StageMemoryTest, APlanHasTheScratchOfAttentionOnAGpu) {
  StageOptions options;
  options.model.layers = 126;
  options.model.hidden = 16384;
  options.model.heads = 128;
  options.model.kv_heads = 8;
  options.model.ffn = 68608;
  options.model.vocab = 131072;
  options.model.seq_len = 4096;
  options.tp = 8;
  options.layers = 16;
  options.compute = ComputeType::kBf16;
  EXPECT_EQ(Stage::Plan(options).gpu_scratch,
            4 * (4096 * 16 + int64_t{16} * 2 * 4096 * 128));
  options.compute = ComputeType::kF32;
  EXPECT_EQ(Stage::Plan(options).gpu_scratch, 4 * 4096 * 16);
}

INSTANTIATE_TEST_SUITE_P(All, StageGradientTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tied" : "Untied";
                         });

}  // namespace
}  // namespace holdfast::trainer
