// tools/convert/llama_map.h: items of our Llama as rows of another trainer's
// tensors; what the imports of running jobs share.

#ifndef HOLDFAST_TOOLS_CONVERT_LLAMA_MAP_H_
#define HOLDFAST_TOOLS_CONVERT_LLAMA_MAP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/convert/dcp_tensors.h"
#include "tools/convert/formats.h"
#include "tools/convert/mapped_source.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {

// "model.layers.3.self_attn.q_proj.weight" is layer 3, "self_attn.q_proj";
// "lm_head.weight" is layer -1, "lm_head".
struct LlamaPart {
  int64_t layer = -1;
  std::string part;
};
LlamaPart PartOf(std::string_view name);

// One place where an item may be found. `runs` have no tensor yet.
struct RowsAt {
  std::string key;
  std::vector<RowRun> runs;
  int64_t rows = 0;  // of the whole tensor
  // The tensor may have more rows than that (padding of the vocabulary).
  bool may_have_more = false;
};
// All places for an item, the likeliest first; none: the item is zero.
using PlacesOf = std::function<std::vector<RowsAt>(const ckpt::ItemSpec&)>;

// Marks what it uses in `keys`. kInvalidArgument lists the items that are
// nowhere with the key that was looked for first, or names a tensor whose rows
// are not as many as the model says.
absl::StatusOr<std::vector<MappedItem>> MapItems(
    const ForeignTensors& tensors, DcpKeys& keys,
    const std::vector<ckpt::ItemSpec>& items, const PlacesOf& places_of);

// Rows [first, first + count).
std::vector<RowRun> Rows(int64_t first, int64_t count);

// The model of a file: the table [model] of a trainer's configuration, or a
// Hugging Face config.json (a name that ends in .json).
absl::StatusOr<trainer::ModelConfig> ReadModelFile(const std::string& path);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_LLAMA_MAP_H_
