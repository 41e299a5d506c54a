// tools/convert/llama_map.cc: items, places and rows.

#include "tools/convert/llama_map.h"

#include <charconv>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/strict_json.h"
#include "trainer/config.h"

namespace holdfast::tools {

LlamaPart PartOf(std::string_view name) {
  constexpr std::string_view kModel = "model.", kLayers = "layers.",
                             kWeight = ".weight";
  LlamaPart result;
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  if (name.starts_with(kLayers)) {
    name.remove_prefix(kLayers.size());
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data(), end, result.layer);
    if (error == std::errc() && rest != end) {
      name.remove_prefix(static_cast<size_t>(rest - name.data()) + 1);
    }
  }
  result.part = std::string(name);
  return result;
}

std::vector<RowRun> Rows(int64_t first, int64_t count) {
  return {{.tensor = 0, .first = first, .count = count, .stride = 1}};
}

absl::StatusOr<std::vector<MappedItem>> MapItems(
    const ForeignTensors& tensors, DcpKeys& keys,
    const std::vector<ckpt::ItemSpec>& items, const PlacesOf& places_of) {
  std::vector<MappedItem> mapped;
  std::vector<std::string> missing;
  for (const ckpt::ItemSpec& item : items) {
    MappedItem made{item, {}};
    const std::vector<RowsAt> places = places_of(item);
    bool found = places.empty();
    for (const RowsAt& place : places) {
      const int index = FindTensor(tensors.tensors(), place.key);
      if (index < 0 || !keys.Offers(place.key)) continue;
      const ForeignTensor& tensor =
          tensors.tensors()[static_cast<size_t>(index)];
      const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
      if (rows < place.rows || (rows > place.rows && !place.may_have_more)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "'%s' has %d rows; by the model that was given it has %d (for %s "
            "of %s)",
            place.key, rows, place.rows, item.kind, item.name));
      }
      keys.Use(place.key);
      made.rows = place.runs;
      for (RowRun& run : made.rows) run.tensor = index;
      found = true;
      break;
    }
    if (!found) {
      missing.push_back(absl::StrFormat("%s (%s of %s)", places[0].key,
                                        item.kind, item.name));
    }
    mapped.push_back(std::move(made));
  }
  if (missing.empty()) return mapped;
  const size_t count = missing.size();
  constexpr size_t kShown = 10;
  if (count > kShown) missing.resize(kShown);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d tensors of the model are not there: %s%s", count,
      absl::StrJoin(missing, ", "), count > kShown ? ", ..." : ""));
}

absl::StatusOr<trainer::ModelConfig> ReadModelFile(const std::string& path) {
  trainer::ModelConfig model;
  if (path.ends_with(".json")) {
    const std::filesystem::path file(path);
    const std::string folder = file.parent_path().string();
    HF_ASSIGN_OR_RETURN(const ForeignDirectory directory,
                        ForeignDirectory::Open(folder.empty() ? "." : folder));
    HF_ASSIGN_OR_RETURN(const ForeignFile opened,
                        directory.OpenFile(file.filename().string()));
    HF_ASSIGN_OR_RETURN(const std::string text,
                        opened.ReadAll(uint64_t{1} << 20));
    HF_ASSIGN_OR_RETURN(const nlohmann::json json,
                        ParseStrictJson(text, opened.path()));
    HF_ASSIGN_OR_RETURN(model, ModelOfHfConfig(json, opened.path()));
  } else {
    // What a configuration must have besides is of no interest here.
    const std::string others[] = {"batch.global_seqs=1", "train.steps=1",
                                  "data.paths=[\"none\"]"};
    HF_ASSIGN_OR_RETURN(const trainer::Config config,
                        trainer::LoadConfig(path, others));
    model = config.model;
  }
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  return model;
}

}  // namespace holdfast::tools
