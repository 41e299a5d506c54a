// tests/support/step_rig.h: whole training runs on threads as ranks.

#ifndef HOLDFAST_TESTS_SUPPORT_STEP_RIG_H_
#define HOLDFAST_TESTS_SUPPORT_STEP_RIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/tiny_model.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step.h"

namespace holdfast::tests {

// Microbatches of one step after another.
class StepSource : public trainer::MicrobatchSource {
 public:
  virtual void BeginStep(int64_t step) = 0;
  // Of the whole step.
  virtual int64_t CountingTokens(int64_t microbatches) const = 0;
};

// Random tokens, as a function of (seed, step, microbatch).
class TinySource : public StepSource {
 public:
  TinySource(const trainer::ModelConfig& model, int64_t micro_seqs,
             uint64_t seed)
      : model_(model), micro_seqs_(micro_seqs), seed_(seed) {}

  void BeginStep(int64_t step) override { step_ = step; }
  absl::StatusOr<trainer::Microbatch> Get(int64_t microbatch) override;
  int64_t CountingTokens(int64_t microbatches) const override;

 private:
  TinyBatch BatchOf(int64_t microbatch) const;

  const trainer::ModelConfig model_;
  const int64_t micro_seqs_;
  const uint64_t seed_;
  int64_t step_ = 0;
  std::unique_ptr<TinyBatch> current_;
};

struct RunOptions {
  trainer::ModelConfig model;
  trainer::ComputeType compute = trainer::ComputeType::kF32;
  bool invariant = true;
  int64_t virtual_dp = 4;
  int64_t global_seqs = 8;
  int64_t micro_seqs = 1;
  trainer::OverlapConfig overlap = {};
  trainer::OptimConfig optim = {
      .lr = 0.01, .min_lr = 0.001, .warmup_steps = 2, .decay_steps = 40};
  ckpt::Mesh mesh = {};
  std::vector<int> stages = {};  // Layers of each; empty is even.
  int64_t steps = 3;
  int64_t eval_microbatches = 0;  // Evaluated after the last step.
  uint64_t seed = 1;
  // Makes a rank's source; null is a TinySource of `seed`.
  std::function<std::unique_ptr<StepSource>()> source = nullptr;
  // First values by tensor name, whole and logical; empty: those of `seed`.
  std::map<std::string, std::vector<float>> weights = {};
  // Makes the device of a rank; null is the CPU's.
  std::function<std::unique_ptr<kernels::Device>(int rank)> device = nullptr;
  // All ranks use this one instead, and exchange its memory directly.
  kernels::Device* shared_device = nullptr;
  // Called on every rank before each step.
  std::function<void(int rank, int64_t step, trainer::StepRunner& runner)>
      before_step = nullptr;
};

// What a run leaves behind. Stored tensors are whole and logical: every element
// from the rank that stores it, pads gone.
struct RunRecord {
  std::vector<uint32_t> loss_bits;
  std::vector<float> losses;
  std::vector<float> grad_norms;
  std::vector<bool> skipped;
  double eval_loss = 0.0;
  int64_t eval_tokens = 0;
  // "NAME/weight", "NAME/master", "NAME/exp_avg", "NAME/exp_avg_sq". Weights
  // are widened to float.
  std::map<std::string, std::vector<float>> stored;
};

// Options as the runner wants them, but for mesh, device and clock.
trainer::StepOptions StepOptionsOf(const RunOptions& options,
                                   const ckpt::TrainLayout& layout);
std::unique_ptr<ckpt::TrainLayout> LayoutOf(const RunOptions& options);

// Writes `values`, by tensor name, to the owned masters and weights of a rank
// on the CPU device. StepRunner::RefreshWeights must follow.
void FillOwned(const ckpt::TrainLayout& layout, ckpt::Rank rank,
               const std::map<std::string, std::vector<float>>& values,
               trainer::TrainState& state);

// CHECK-fails on any error of any rank, and when two ranks report different
// results of one step.
RunRecord TrainTiny(const RunOptions& options);

// Equal in every bit, "" or a description of the first difference.
std::string FirstDifference(const RunRecord& a, const RunRecord& b);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_STEP_RIG_H_
