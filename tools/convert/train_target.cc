// tools/convert/train_target.cc: the trainer's layout and attributes.

#include "tools/convert/train_target.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/config.h"
#include "trainer/model/tensor_table.h"
#include "trainer/resume_state.h"

namespace holdfast::tools {

using ckpt::DType;
using ckpt::ItemSpec;

DType WeightType(trainer::ComputeType compute) {
  return compute == trainer::ComputeType::kBf16 ? DType::kBf16 : DType::kF32;
}

std::vector<ItemSpec> ItemsOf(const trainer::ModelConfig& model,
                              trainer::ComputeType compute) {
  std::vector<ItemSpec> items;
  for (const ckpt::TensorSpec& spec : BuildTensorTable(model, 1).specs) {
    items.push_back({spec.name, "weight", WeightType(compute), spec.shape});
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      items.push_back({spec.name, kind, DType::kF32, spec.shape});
    }
  }
  std::sort(items.begin(), items.end(),
            [](const ItemSpec& a, const ItemSpec& b) {
              return std::tie(a.name, a.kind) < std::tie(b.name, b.kind);
            });
  return items;
}

absl::StatusOr<std::unique_ptr<ckpt::TrainLayout>> MakeTrainTarget(
    const trainer::ModelConfig& model, trainer::ComputeType compute,
    const TargetShape& shape) {
  HF_RETURN_IF_ERROR(CheckModel(model, shape.tp));
  ckpt::TrainLayoutOptions options;
  options.mesh = {.tp = shape.tp, .pp = shape.pp, .dp = shape.dp};
  options.weight_dtype = WeightType(compute);
  const int layers = static_cast<int>(model.layers);
  if (shape.stages.empty()) {
    HF_ASSIGN_OR_RETURN(options.stages,
                        ckpt::EvenStages(layers, shape.pp, 1.0, 1.0));
  } else {
    HF_ASSIGN_OR_RETURN(options.stages,
                        ckpt::StagesFromCounts(layers, shape.stages));
  }
  return ckpt::TrainLayout::Create(BuildTensorTable(model, shape.tp).specs,
                                   options);
}

std::string ModelToml(const trainer::ModelConfig& model) {
  trainer::Config config;
  config.model = model;
  std::string text;
  for (const auto line : absl::StrSplit(CanonicalText(config), '\n')) {
    if (absl::StartsWith(line, "model.")) {
      text.append(line.data(), line.size());
      text += '\n';
    }
  }
  return text;
}

std::map<std::string, std::string> ImportedAttributes(
    const trainer::ModelConfig& model, const ImportedRun& run) {
  HF_CHECK(!run.origin.empty(), "an import from nowhere");
  trainer::ResumeState state;
  state.step = run.step;
  state.tokens = run.tokens;
  state.data = run.data;
  state.data_fingerprint = "none";
  state.numerics_fingerprint = "none";
  state.config = ModelToml(model);
  state.imported_from = run.origin;
  return ToAttributes(state);
}

absl::StatusOr<trainer::ModelConfig> ModelOfAttributes(
    const std::map<std::string, std::string>& attributes) {
  HF_ASSIGN_OR_RETURN(const trainer::ResumeState state,
                      trainer::FromAttributes(attributes));
  HF_ASSIGN_OR_RETURN(const trainer::Config config, SavedConfig(state));
  trainer::ModelConfig model = config.model;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  HF_RETURN_IF_ERROR(CheckModel(model, 1));
  return model;
}

}  // namespace holdfast::tools
