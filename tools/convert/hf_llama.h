// tools/convert/hf_llama.h: Llama models as Hugging Face's transformers keeps
// them: config.json and safetensors.
//
// Names, shapes and rotary order are ours already
// (trainer/model/tensor_table.h, kernels/rope.h), so no row moves. In: weight
// and master from the file's exact values (the weight rounded to the run's
// type), moments zero, step 0. Out: the masters, or the weights where they are
// what is asked for. What such files cannot hold, and a resume from them would
// miss: moments, step, data cursor, configuration of the run.

#ifndef HOLDFAST_TOOLS_CONVERT_HF_LLAMA_H_
#define HOLDFAST_TOOLS_CONVERT_HF_LLAMA_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/convert/formats.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {

// The model that a config.json describes; keys and defaults are those of
// transformers' LlamaConfig, versions 4 and 5. kInvalidArgument names the key
// that asks for what our model has not: another model_type, biases, scaled
// rotary positions, a head size that is not hidden / heads, another activation,
// quantization.
absl::StatusOr<trainer::ModelConfig> ModelOfHfConfig(const nlohmann::json& json,
                                                     std::string_view name);

// A config.json that versions 4 and 5 read. `dtype` is "float32", "bfloat16" or
// "float16".
std::string HfConfigText(const trainer::ModelConfig& model,
                         std::string_view dtype);

absl::StatusOr<ImportedState> OpenHfLlama(const ImportRequest& request);

// `dtype` f32 (the default) is the masters; bf16 and f16 are the weights where
// they are stored so, else the masters rounded. f16 refuses values beyond it.
//
// The directory appears whole or not at all: it is made as .OUT.partial beside
// it, synced and renamed. One that was left behind by an export that was killed
// is removed first.
absl::StatusOr<ExportReport> WriteHfLlama(ckpt::StateSource* source,
                                          const ExportRequest& request);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_HF_LLAMA_H_
