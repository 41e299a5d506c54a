// tests/unit/tools/convert/hf_files.h: small Hugging Face directories, written
// by plain code.

#ifndef HOLDFAST_TESTS_UNIT_TOOLS_CONVERT_HF_FILES_H_
#define HOLDFAST_TESTS_UNIT_TOOLS_CONVERT_HF_FILES_H_

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tools/convert/hf_llama.h"
#include "tools/convert/safetensors.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {

inline trainer::ModelConfig SmallHfModel(bool tied) {
  trainer::ModelConfig model;
  model.layers = 2;
  model.hidden = 16;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn = 24;
  model.vocab = 37;
  model.seq_len = 64;
  model.tied = tied;
  model.rope_theta = 500000.0;
  model.norm_eps = 1e-6;
  return model;
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// FP32 values that follow from name and place.
inline std::vector<float> HfValues(const std::string& name, int64_t elements) {
  float at = 0;
  for (const char c : name) at = at * 0.7f + static_cast<float>(c) / 64;
  std::vector<float> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (at + static_cast<float>(i % 251) / 17) / 8;
  }
  return values;
}

struct HfTensorFile {
  std::vector<SafeTensor> tensors;
  std::string data;

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (const int64_t dimension : shape) elements *= dimension;
    const std::vector<float> values = HfValues(name, elements);
    tensors.push_back({name, "F32", shape, 0, values.size() * 4});
    data.append(reinterpret_cast<const char*>(values.data()),
                values.size() * 4);
  }
  void Write(const std::string& path) const {
    const std::vector<std::byte> header =
        EncodeSafetensorsHeader(tensors, {{"format", "pt"}});
    WriteText(path, std::string(reinterpret_cast<const char*>(header.data()),
                                header.size()) +
                        data);
  }
};

// A whole model in one file. `change` may add and leave out tensors.
template <typename Change>
void WriteHfModel(const std::string& directory,
                  const trainer::ModelConfig& model, Change change) {
  std::filesystem::create_directories(directory);
  WriteText(directory + "/config.json", HfConfigText(model, "float32"));
  HfTensorFile file;
  for (const ckpt::TensorSpec& spec : BuildTensorTable(model, 1).specs) {
    file.Add(spec.name, spec.shape);
  }
  change(file);
  file.Write(directory + "/model.safetensors");
}
inline void WriteHfModel(const std::string& directory,
                         const trainer::ModelConfig& model) {
  WriteHfModel(directory, model, [](HfTensorFile&) {});
}

}  // namespace holdfast::tools

#endif  // HOLDFAST_TESTS_UNIT_TOOLS_CONVERT_HF_FILES_H_
