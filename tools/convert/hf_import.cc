// tools/convert/hf_import.cc: config.json and safetensors as a state.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/mapped_source.h"
#include "tools/convert/safetensors_directory.h"
#include "tools/convert/strict_json.h"
#include "tools/convert/train_target.h"

namespace holdfast::tools {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20;

// What older files also hold: the rotary frequencies, which follow from the
// configuration.
bool IsDerived(const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return "[" + absl::StrJoin(shape, ",") + "]";
}

// Every tensor of the model is there in its shape, and no other.
absl::Status CheckTensors(ForeignTensors& found,
                          const std::vector<ckpt::ItemSpec>& items,
                          const trainer::ModelConfig& model,
                          const std::string& where,
                          std::vector<std::string>* notes) {
  std::vector<bool> used(found.tensors().size());
  for (const ckpt::ItemSpec& item : items) {
    if (item.kind != "weight") continue;
    const int at = FindTensor(found.tensors(), item.name);
    if (at < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has no tensor '%s', which the model of its config.json has",
          where, item.name));
    }
    used[static_cast<size_t>(at)] = true;
    const ForeignTensor& tensor = found.tensors()[static_cast<size_t>(at)];
    if (tensor.shape != item.shape) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor '%s' is %s; by config.json it is %s", where, tensor.name,
          ShapeText(tensor.shape), ShapeText(item.shape)));
    }
  }
  std::vector<std::string> unknown;
  for (size_t i = 0; i < used.size(); ++i) {
    const std::string& name = found.tensors()[i].name;
    if (used[i]) continue;
    if (model.tied && name == kHead) {
      HF_ASSIGN_OR_RETURN(const bool same,
                          SameBytes(found, static_cast<int>(i),
                                    FindTensor(found.tensors(), kEmbedding)));
      if (!same) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: config.json ties the head to the embedding, and '%s' is "
            "another matrix than '%s'",
            where, kHead, kEmbedding));
      }
      notes->push_back("lm_head.weight repeats the tied embedding; left out");
    } else if (IsDerived(name)) {
      notes->push_back(name + " follows from rope_theta; left out");
    } else {
      unknown.push_back(name);
    }
  }
  if (unknown.empty()) return absl::OkStatus();
  const size_t count = unknown.size();
  if (count > 10) unknown.resize(10);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has %d tensors that the model of its config.json has not: %s%s",
      where, count, absl::StrJoin(unknown, ", "), count > 10 ? ", ..." : ""));
}

}  // namespace

absl::StatusOr<ImportedState> OpenHfLlama(const ImportRequest& request) {
  HF_ASSIGN_OR_RETURN(const ForeignDirectory directory,
                      ForeignDirectory::Open(request.from));
  HF_ASSIGN_OR_RETURN(const ForeignFile file,
                      directory.OpenFile("config.json"));
  HF_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kConfigBytesMax));
  HF_ASSIGN_OR_RETURN(const nlohmann::json json,
                      ParseStrictJson(text, file.path()));
  HF_ASSIGN_OR_RETURN(const trainer::ModelConfig model,
                      ModelOfHfConfig(json, file.path()));
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<ForeignTensors> tensors,
                      OpenSafetensorsDirectory(directory, request.memory_max));
  // Before a list of all of the model's items is made: config.json may claim
  // any number of layers.
  if (static_cast<uint64_t>(model.layers) > tensors->tensors().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d layers in %d tensors", request.from,
                        model.layers, tensors->tensors().size()));
  }

  ImportedState state;
  state.memory_bytes = TableBytes(tensors->tensors());
  const std::vector<ckpt::ItemSpec> items = ItemsOf(model, request.compute);
  HF_RETURN_IF_ERROR(
      CheckTensors(*tensors, items, model, request.from, &state.notes));
  std::vector<MappedItem> mapped;
  for (const ckpt::ItemSpec& item : items) {
    MappedItem made{item, {}};
    if (item.kind == "weight" || item.kind == "master") {
      made.rows =
          WholeTensor(*tensors, FindTensor(tensors->tensors(), item.name));
    }
    mapped.push_back(std::move(made));
  }
  state.model = model;
  state.notes.push_back(
      "step 0; the moments are zero, for the files have none");
  HF_ASSIGN_OR_RETURN(
      state.source,
      MakeMappedSource(
          tensors, std::move(mapped),
          ImportedAttributes(model, {.origin = "hf " + request.from}),
          request.readers));
  return state;
}

}  // namespace holdfast::tools
