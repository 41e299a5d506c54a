// tests/support/tiny_model.h: models small enough to be checked number by
// number, and batches for them that are a function of (seed, step, index).

#ifndef HOLDFAST_TESTS_SUPPORT_TINY_MODEL_H_
#define HOLDFAST_TESTS_SUPPORT_TINY_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ckpt/layout/train_layout.h"
#include "kernels/device.h"
#include "trainer/model/model_config.h"
#include "trainer/model/stage.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/step.h"
#include "trainer/train_state.h"

namespace holdfast::tests {

// Two layers, grouped-query attention, a vocabulary that is no multiple of
// anything; TP 2 divides it.
trainer::ModelConfig TinyModel(bool tied);

// `stages`: layers of each; empty is all on one.
std::unique_ptr<ckpt::TrainLayout> TinyLayout(
    const trainer::ModelConfig& model, trainer::ComputeType compute,
    const ckpt::Mesh& mesh, const std::vector<int>& stages = {});

// One microbatch of random tokens; about one in five does not count.
struct TinyBatch {
  TinyBatch(const trainer::ModelConfig& model, int64_t sequences,
            uint64_t seed);

  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<uint8_t> mask;

  int64_t counting() const;
  trainer::Microbatch view() const { return {tokens, targets, mask}; }
};

struct LoneStageOptions {
  trainer::ModelConfig model;
  trainer::ComputeType compute = trainer::ComputeType::kF32;
  int64_t micro_seqs = 2;
  uint64_t seed = 1;
  int slots = 1;
  // One cell of this mesh.
  ckpt::Mesh mesh = {};
  ckpt::Coordinates at = {};
  std::vector<int> stages = {};  // Layers of each; empty is all on one.
  trainer::Collectives* tp = nullptr;
};

// One stage with its state, without a step around it. Weights are the initial
// values of the seed; a tied copy's are zero until someone fills them.
struct LoneStage {
  LoneStage(const LoneStageOptions& options, kernels::Device& device);

  // Returns the sum of the counting tokens' losses (last stage).
  double Forward(const TinyBatch& batch, float token_weight);
  void Backward();
  void ZeroGradients();

  // First element of a tensor in the weights and in the gradients.
  int64_t OffsetOf(int tensor) const;

  trainer::ModelTensors tensors;
  std::unique_ptr<ckpt::TrainLayout> layout;
  std::unique_ptr<trainer::TrainState> state;
  std::unique_ptr<trainer::DeviceCollectives> tp;  // Over options.tp.
  std::unique_ptr<trainer::Stage> stage;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_TINY_MODEL_H_
