// tests/support/tiny_model.cc: see tiny_model.h.

#include "tests/support/tiny_model.h"

#include <algorithm>

#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"

namespace holdfast::tests {

using trainer::ComputeType;
using trainer::ModelConfig;

ModelConfig TinyModel(bool tied) {
  return {.layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 40,
          .vocab = 37,
          .seq_len = 11,
          .tied = tied,
          .init_std = 0.15};
}

std::unique_ptr<ckpt::TrainLayout> TinyLayout(const ModelConfig& model,
                                              ComputeType compute,
                                              const ckpt::Mesh& mesh,
                                              const std::vector<int>& stages) {
  ckpt::TrainLayoutOptions options;
  options.mesh = mesh;
  options.weight_dtype =
      compute == ComputeType::kBf16 ? ckpt::DType::kBf16 : ckpt::DType::kF32;
  int first = 0;
  for (const int count : stages) {
    options.stages.push_back({{first, count}});
    first += count;
  }
  if (stages.empty()) {
    HF_CHECK(mesh.pp == 1, "pp = %d needs a list of stages", mesh.pp);
    options.stages.push_back({{0, static_cast<int>(model.layers)}});
  }
  auto layout = ckpt::TrainLayout::Create(
      trainer::BuildTensorTable(model, mesh.tp).specs, options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return std::move(layout).value();
}

TinyBatch::TinyBatch(const ModelConfig& model, int64_t sequences,
                     uint64_t seed) {
  uint64_t index = 0;
  const auto draw = [&](uint64_t limit) {
    return ckpt::Philox64(seed, /*stream=*/77, index++) % limit;
  };
  const auto vocab = static_cast<uint64_t>(model.vocab);
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    int32_t next = static_cast<int32_t>(draw(vocab));
    for (int64_t position = 0; position < model.seq_len; ++position) {
      tokens.push_back(next);
      next = static_cast<int32_t>(draw(vocab));
      targets.push_back(next);
      mask.push_back(draw(5) != 0);
    }
  }
}

int64_t TinyBatch::counting() const {
  return std::count(mask.begin(), mask.end(), uint8_t{1});
}

LoneStage::LoneStage(const LoneStageOptions& options, kernels::Device& device)
    : tensors(trainer::BuildTensorTable(options.model, options.mesh.tp)),
      layout(TinyLayout(options.model, options.compute, options.mesh,
                        options.stages)) {
  const ckpt::Coordinates& at = options.at;
  auto state_or = trainer::TrainState::Create(tensors, *layout, at, 1, device);
  HF_CHECK(state_or.ok(), "%s", state_or.status().ToString());
  state = std::move(state_or).value();
  const absl::Status status = state->Initialise(options.model, options.seed);
  HF_CHECK(status.ok(), "%s", status.ToString());
  trainer::StageOptions stage_options;
  stage_options.model = options.model;
  stage_options.compute = options.compute;
  stage_options.tp = options.mesh.tp;
  stage_options.tp_rank = at.tp;
  stage_options.layers = layout->options().stages[at.pp][0].count;
  stage_options.first = at.pp == 0;
  stage_options.last = at.pp == options.mesh.pp - 1;
  stage_options.micro_seqs = options.micro_seqs;
  stage_options.slots = options.slots;
  if (options.tp != nullptr) {
    tp = trainer::NewHostedCollectives(*options.tp, device);
  }
  auto stage_or = trainer::Stage::Create(
      stage_options, state->StageOffsetsOf(tensors),
      state->regions()[ckpt::kWeightRegion].data, tp.get(), device);
  HF_CHECK(stage_or.ok(), "%s", stage_or.status().ToString());
  stage = std::move(stage_or).value();
  stage->SetGradients(state->gradients(0));
}

double LoneStage::Forward(const TinyBatch& batch, float token_weight) {
  double loss = 0.0;
  const absl::Status status = stage->Forward(0,
                                             {.tokens = batch.tokens,
                                              .targets = batch.targets,
                                              .mask = batch.mask,
                                              .token_weight = token_weight},
                                             0, &loss);
  HF_CHECK(status.ok(), "%s", status.ToString());
  return loss;
}

void LoneStage::Backward() {
  const absl::Status status = stage->Backward(0, 0);
  HF_CHECK(status.ok(), "%s", status.ToString());
}

void LoneStage::ZeroGradients() {
  std::fill_n(state->gradients(0), state->gradient_elements(), 0.0f);
}

int64_t LoneStage::OffsetOf(int tensor) const {
  for (const ckpt::LocalTensor& local : state->tensors()) {
    if (local.tensor == tensor) {
      return local.first_block * ckpt::kBlockElements;
    }
  }
  HF_CHECK(false, "tensor %d is not here", tensor);
}

}  // namespace holdfast::tests
