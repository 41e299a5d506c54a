// The model against PyTorch, in FP32: the numbers in model_*.bin were made by
// make_model_golden.py, from the same weights and tokens.
//
// Tolerances. Both sides sum in FP32, in different orders. Logits here are
// about 1 and sums 24 to 40 terms long, so they agree to a few 1e-7; gradients
// are about 1e-2 and agree to 1e-7 or 1e-5 relative. AdamW divides by the root
// of the squared gradient, so an element whose gradient is mostly rounding may
// move differently by up to its rate; after three steps of rates up to 0.02
// every element agrees to 5e-4, and all but one in two hundred to 1e-5.

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden_file.h"
#include "tests/support/step_rig.h"
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

// The steps of the golden, cut into microbatches.
class GoldenSource : public StepSource {
 public:
  GoldenSource(std::vector<TinyBatch> steps, int64_t rows)
      : steps_(std::move(steps)), rows_(rows) {}

  void BeginStep(int64_t step) override { now_ = &steps_[step - 1]; }
  int64_t CountingTokens(int64_t) const override { return now_->counting(); }
  absl::StatusOr<trainer::Microbatch> Get(int64_t microbatch) override {
    const auto cut = [&](auto& values) {
      return std::span(values).subspan(static_cast<size_t>(microbatch * rows_),
                                       static_cast<size_t>(rows_));
    };
    return trainer::Microbatch{cut(now_->tokens), cut(now_->targets),
                               cut(now_->mask)};
  }

 private:
  std::vector<TinyBatch> steps_;
  const int64_t rows_;
  const TinyBatch* now_ = nullptr;
};

TEST_P(ModelGoldenTest, ThreeStepsOfAdamWAreThoseOfPyTorchOnAnyMesh) {
  RunOptions options;
  options.model = model_;
  options.virtual_dp = sequences_;
  options.global_seqs = sequences_;
  options.micro_seqs = 1;
  options.steps = steps_;
  const std::vector<float>& optim = golden_.floats("optim");
  // The golden's rates, 0.01, 0.02 and 0.015, are those of this schedule.
  ASSERT_EQ(std::vector<float>(optim.begin(), optim.begin() + 3),
            (std::vector<float>{0.01f, 0.02f, 0.015f}));
  options.optim = {.lr = 0.02,
                   .min_lr = 0.01,
                   .warmup_steps = 2,
                   .decay_steps = 4,
                   .beta1 = optim[3],
                   .beta2 = optim[4],
                   .eps = optim[5],
                   .weight_decay = optim[6],
                   .clip_norm = optim[7]};
  std::vector<TinyBatch> batches;
  for (int step = 1; step <= steps_; ++step) batches.push_back(BatchOf(step));
  options.source = [&] {
    return std::make_unique<GoldenSource>(batches, model_.seq_len);
  };
  for (const auto& [name, array] : golden_.arrays()) {
    if (name.rfind("weight/", 0) == 0) {
      options.weights[name.substr(7)] = array.floats;
    }
  }
  for (const ckpt::Mesh& mesh :
       {ckpt::Mesh{}, ckpt::Mesh{.tp = 2, .pp = 2, .dp = 2}}) {
    SCOPED_TRACE(ckpt::ToString(mesh));
    options.mesh = mesh;
    const RunRecord run = TrainTiny(options);
    for (int step = 1; step <= steps_; ++step) {
      const std::string at = "step/" + std::to_string(step) + "/";
      EXPECT_NEAR(run.losses[step - 1], golden_.floats(at + "loss")[0], 1e-5);
      EXPECT_NEAR(run.grad_norms[step - 1], golden_.floats(at + "norm")[0],
                  1e-4);
    }
    int64_t elements = 0, far = 0;
    for (const auto& [name, values] : options.weights) {
      const std::vector<float>& found = run.stored.at(name + "/master");
      const std::vector<float>& expected = golden_.floats("after/" + name);
      ASSERT_EQ(found.size(), expected.size()) << name;
      for (size_t i = 0; i < found.size(); ++i) {
        const float gap = std::abs(found[i] - expected[i]);
        EXPECT_LE(gap, 5e-4f) << name << " element " << i;
        ++elements;
        far += gap > 1e-5f;
      }
    }
    EXPECT_LE(far, elements / 200);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelGoldenTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tied" : "Untied";
                         });

}  // namespace
}  // namespace holdfast::tests
