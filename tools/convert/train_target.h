// tools/convert/train_target.h: what a conversion must know of the trainer: the
// layout of a decoder's state, and the attributes that a start reads. Pure.

#ifndef HOLDFAST_TOOLS_CONVERT_TRAIN_TARGET_H_
#define HOLDFAST_TOOLS_CONVERT_TRAIN_TARGET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/train_layout.h"
#include "trainer/data/data_state.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {

ckpt::DType WeightType(trainer::ComputeType compute);

// Every item of a decoder's state, sorted by (name, kind).
std::vector<ckpt::ItemSpec> ItemsOf(const trainer::ModelConfig& model,
                                    trainer::ComputeType compute);

struct TargetShape {
  int tp = 1, pp = 1, dp = 1;
  std::vector<int> stages = {};  // layers of each; empty: even
};
// kInvalidArgument: the model cannot be cut so.
absl::StatusOr<std::unique_ptr<ckpt::TrainLayout>> MakeTrainTarget(
    const trainer::ModelConfig& model, trainer::ComputeType compute,
    const TargetShape& shape);

struct ImportedRun {
  std::string origin;  // for people: "hf /models/llama"
  int64_t step = 0;
  uint64_t tokens = 0;
  trainer::DataState data = {};
};
// The attributes of an imported state, so that `holdfast train --init-from`
// takes all of it. They have the model's numbers and no others: the start then
// compares the model (not seq_len), and neither data, batch, rates nor numerics
// (trainer/resume_state.h).
std::map<std::string, std::string> ImportedAttributes(
    const trainer::ModelConfig& model, const ImportedRun& run);

// The model of a checkpoint, from its attributes. kFailedPrecondition: it was
// not written by the trainer.
absl::StatusOr<trainer::ModelConfig> ModelOfAttributes(
    const std::map<std::string, std::string>& attributes);

// The lines of [model], as a configuration file has them.
std::string ModelToml(const trainer::ModelConfig& model);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_TRAIN_TARGET_H_
