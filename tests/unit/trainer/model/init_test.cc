// Initial values belong to logical elements: cutting a tensor in any way must
// give the same bits.

#include "trainer/model/init.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::trainer {
namespace {

ModelConfig Small() {
  return {.layers = 3,
          .hidden = 64,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 96,
          .vocab = 301,
          .seq_len = 8,
          .init_std = 0.02};
}

std::vector<float> ValuesOf(const ckpt::TensorSpec& spec, const ckpt::Box& box,
                            uint64_t seed = 1) {
  std::vector<float> values(box.elements());
  InitialValues(Small(), seed, spec, box, values.data());
  return values;
}

TEST(InitTest, AnyBoxHasTheValuesOfTheWhole) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  const ckpt::TensorSpec& spec = tensors.specs[tensors.layers[1].o];
  const std::vector<float> whole = ValuesOf(spec, ckpt::WholeBox(spec.shape));
  for (const int64_t first_row : {0, 1, 17}) {
    for (const int64_t first_column : {0, 3, 32}) {
      ckpt::Box box{2, {first_row, first_column}, {5, 29}};
      const std::vector<float> part = ValuesOf(spec, box);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < 29; ++c) {
          ASSERT_EQ(part[r * 29 + c],
                    whole[(first_row + r) * 64 + first_column + c]);
        }
      }
    }
  }
}

TEST(InitTest, NormsAreOne) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  const ckpt::TensorSpec& spec = tensors.specs[tensors.final_norm];
  for (const float value : ValuesOf(spec, ckpt::WholeBox(spec.shape))) {
    ASSERT_EQ(value, 1.0f);
  }
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
  double kurtosis = 0.0;  // 3 for a normal distribution
};

Moments MomentsOf(const std::vector<float>& values) {
  const double n = static_cast<double>(values.size());
  Moments moments;
  for (const float value : values) moments.mean += value / n;
  double second = 0.0, fourth = 0.0;
  for (const float value : values) {
    const double square = std::pow(value - moments.mean, 2);
    second += square / n;
    fourth += square * square / n;
  }
  moments.deviation = std::sqrt(second);
  moments.kurtosis = fourth / (second * second);
  return moments;
}

TEST(InitTest, MatricesAreNormalWithTheStatedDeviation) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  // 301 * 64 values: the bounds are about five standard errors.
  const ckpt::TensorSpec& table = tensors.specs[tensors.embedding];
  const Moments moments =
      MomentsOf(ValuesOf(table, ckpt::WholeBox(table.shape)));
  EXPECT_NEAR(moments.mean, 0.0, 5 * 0.02 / std::sqrt(19264.0));
  EXPECT_NEAR(moments.deviation, 0.02, 5 * 0.02 / std::sqrt(2 * 19264.0));
  EXPECT_NEAR(moments.kurtosis, 3.0, 5 * std::sqrt(24.0 / 19264.0));

  const ckpt::TensorSpec& down = tensors.specs[tensors.layers[2].down];
  EXPECT_NEAR(MomentsOf(ValuesOf(down, ckpt::WholeBox(down.shape))).deviation,
              0.02 / std::sqrt(6.0), 5 * 0.0082 / std::sqrt(2 * 6144.0));
}

TEST(InitTest, TensorsAndSeedsHaveStreamsOfTheirOwn) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  const ckpt::TensorSpec& gate = tensors.specs[tensors.layers[0].gate];
  const ckpt::TensorSpec& up = tensors.specs[tensors.layers[0].up];
  const ckpt::Box box = ckpt::WholeBox(gate.shape);
  const std::vector<float> of_gate = ValuesOf(gate, box);
  const std::vector<float> of_up = ValuesOf(up, box);
  const std::vector<float> other_seed = ValuesOf(gate, box, 2);
  int equal_tensors = 0, equal_seeds = 0;
  for (size_t i = 0; i < of_gate.size(); ++i) {
    equal_tensors += of_gate[i] == of_up[i];
    equal_seeds += of_gate[i] == other_seed[i];
  }
  EXPECT_LT(equal_tensors, 10);
  EXPECT_LT(equal_seeds, 10);
}

}  // namespace
}  // namespace holdfast::trainer
