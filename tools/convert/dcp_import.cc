// tools/convert/dcp_import.cc: any DCP checkpoint as it is, tensor by tensor.
//
// Kinds are those of the Python package (tools/python/holdfast_ckpt/_items.py):
// "tensor", or "torch.TYPE" for bytes of a type that has no number here. What
// is no tensor keeps the bytes that torch.save made of it, under "torch.save".

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/dcp_tensors.h"
#include "tools/convert/mapped_source.h"
#include "tools/convert/running_jobs.h"

namespace holdfast::tools {

absl::StatusOr<ImportedState> OpenDcp(const ImportRequest& request) {
  if (!request.model_file.empty()) {
    return absl::InvalidArgumentError(
        "--model: --from dcp takes tensors as they are and has no model; "
        "--from torchtitan and --from megatron have one");
  }
  ImportedState state;
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<DcpDirectory> directory,
                      OpenDcpDirectory(request, &state.memory_bytes));
  const std::shared_ptr<ForeignTensors> tensors = MakeDcpTensors(
      directory, [](const DcpTensor&) { return 1; }, /*as_bytes=*/true);
  DcpKeys keys(directory);
  HF_RETURN_IF_ERROR(keys.Ignore(request.ignore));
  std::vector<MappedItem> mapped;
  const std::vector<std::string> open = keys.Open();
  for (size_t i = 0; i < tensors->tensors().size(); ++i) {
    const ForeignTensor& view = tensors->tensors()[i];
    if (!std::binary_search(open.begin(), open.end(), view.name)) continue;
    keys.Use(view.name);
    std::string kind = "tensor";
    if (const int64_t at = directory->FindTensor(view.name); at >= 0) {
      const TorchType& type =
          directory->metadata().tensors[static_cast<size_t>(at)].type;
      if (!type.dtype.has_value()) kind = "torch." + type.name;
    } else {
      kind = "torch.save";
    }
    MappedItem made{{view.name, kind, view.dtype, view.shape}, {}};
    // An empty tensor has no rows; MappedSource fills what is not there.
    int64_t elements = 1;
    for (const int64_t length : view.shape) elements *= length;
    if (elements > 0) made.rows = WholeTensor(*tensors, static_cast<int>(i));
    mapped.push_back(std::move(made));
  }
  std::sort(mapped.begin(), mapped.end(),
            [](const MappedItem& a, const MappedItem& b) {
              return std::tie(a.item.name, a.item.kind) <
                     std::tie(b.item.name, b.item.kind);
            });
  HF_RETURN_IF_ERROR(
      keys.CheckAllMapped("what an item can hold (at most four dimensions)"));
  HF_RETURN_IF_ERROR(NoteChecksums(*directory, &state.notes));
  HF_ASSIGN_OR_RETURN(
      state.source,
      MakeMappedSource(tensors, std::move(mapped),
                       {{".imported_from", "dcp " + request.from}},
                       request.readers));
  return state;
}

}  // namespace holdfast::tools
