// The model against PyTorch, in FP32: the numbers in model_*.bin were made by
// make_model_golden.py, from the same weights and tokens.
//
// Tolerances. Both sides sum in FP32, in different orders. Logits here are
// about 1 and sums 24 to 40 terms long, so they agree to a few 1e-7; gradients
// are about 1e-2 and agree to 1e-7 or 1e-5 relative. AdamW divides by the root
// of the squared gradient, so an element whose gradient is mostly rounding may
// move differently by up to its rate; after three steps of rates up to 0.02
// every element agrees to 2e-4, and all but one in two hundred to 2e-6.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden_file.h"
#include "tests/support/tiny_model.h"

namespace holdfast::tests {
namespace {

using trainer::ComputeType;
using trainer::ModelConfig;

class ModelGoldenTest : public testing::TestWithParam<bool> {
 protected:
  ModelGoldenTest()
      : golden_(std::string(HOLDFAST_SOURCE_DIR) + "/tests/golden/model_" +
                (GetParam() ? "tied" : "untied") + ".bin"),
        device_(kernels::NewCpuDevice()) {
    const std::vector<int32_t>& config = golden_.ints("config");
    model_ = {.layers = config[0],
              .hidden = config[1],
              .heads = config[2],
              .kv_heads = config[3],
              .ffn = config[4],
              .vocab = config[5],
              .seq_len = config[6],
              .tied = config[9] != 0};
    sequences_ = config[7];
    steps_ = config[8];
  }

  TinyBatch BatchOf(int step) const {
    const std::string at = "step/" + std::to_string(step) + "/";
    TinyBatch batch(model_, sequences_, 1);
    batch.tokens = golden_.ints(at + "tokens");
    batch.targets = golden_.ints(at + "targets");
    const std::vector<int32_t>& mask = golden_.ints(at + "mask");
    batch.mask.assign(mask.begin(), mask.end());
    return batch;
  }

  // Into the weights and, where there are some, the masters.
  void LoadWeights(const trainer::ModelTensors& tensors,
                   trainer::TrainState& state) const {
    for (const ckpt::LocalTensor& local : state.tensors()) {
      const std::vector<float>& values =
          golden_.floats("weight/" + tensors.specs[local.tensor].name);
      ASSERT_EQ(static_cast<int64_t>(values.size()), local.elements);
      const int64_t at = local.first_block * ckpt::kBlockElements;
      for (const auto region : {ckpt::kWeightRegion, ckpt::kMasterRegion}) {
        std::copy(values.begin(), values.end(),
                  state.regions()[region].as<float>() + at);
      }
    }
  }

  GoldenFile golden_;
  std::unique_ptr<kernels::Device> device_;
  ModelConfig model_;
  int64_t sequences_ = 0;
  int steps_ = 0;
};

TEST_P(ModelGoldenTest, LogitsLossAndGradientsAreThoseOfPyTorch) {
  LoneStage lone({.model = model_, .micro_seqs = sequences_}, *device_);
  LoadWeights(lone.tensors, *lone.state);
  const TinyBatch batch = BatchOf(1);
  const float weight = 1.0f / static_cast<float>(batch.counting());
  const double loss =
      lone.Forward(batch, weight) / static_cast<double>(batch.counting());
  EXPECT_NEAR(loss, golden_.floats("step/1/loss")[0], 1e-6);

  const std::vector<float> logits = lone.stage->Logits();
  const std::vector<float>& expected = golden_.floats("logits");
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t columns = static_cast<int64_t>(logits.size()) / rows;
  ASSERT_EQ(static_cast<int64_t>(expected.size()), rows * model_.vocab);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t token = 0; token < model_.vocab; ++token) {
      ASSERT_NEAR(logits[row * columns + token],
                  expected[row * model_.vocab + token], 2e-6)
          << "row " << row << " token " << token;
    }
  }

  lone.Backward();
  const float* const gradients = lone.state->gradients(0);
  const int64_t head_at =
      lone.state->shape().tied_head_blocks.first * ckpt::kBlockElements;
  for (const ckpt::LocalTensor& local : lone.state->tensors()) {
    const std::string& name = lone.tensors.specs[local.tensor].name;
    const std::vector<float>& of_torch = golden_.floats("grad/" + name);
    const int64_t at = local.first_block * ckpt::kBlockElements;
    const bool both = model_.tied && local.tensor == lone.tensors.embedding;
    for (int64_t i = 0; i < local.elements; ++i) {
      const float gradient =
          gradients[at + i] + (both ? gradients[head_at + i] : 0.0f);
      ASSERT_NEAR(gradient, of_torch[i], 5e-7 + 1e-5 * std::abs(of_torch[i]))
          << name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelGoldenTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tied" : "Untied";
                         });

}  // namespace
}  // namespace holdfast::tests
