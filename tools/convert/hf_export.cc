// tools/convert/hf_export.cc: a state as config.json and safetensors.

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/cast.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/safetensors_writer.h"
#include "tools/convert/train_target.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

struct TypeRow {
  std::string_view option;
  DType dtype;
  std::string_view torch;
};
constexpr TypeRow kTypes[] = {{"f32", DType::kF32, "float32"},
                              {"bf16", DType::kBf16, "bfloat16"},
                              {"f16", DType::kF16, "float16"}};

// A tensor to be written, and what it is made of.
struct Made {
  ckpt::ItemIndex item = 0;
  DType from = DType::kF32;
  ckpt::Box whole;
  std::string name;
};

// The item of `name` that comes nearest to `to`: the weight where it is of that
// type already, else the master, else the weight.
absl::StatusOr<ckpt::ItemIndex> Choose(
    const std::vector<ckpt::ItemSpec>& items,
    const std::map<std::pair<std::string, std::string>, ckpt::ItemIndex>& at,
    const ckpt::TensorSpec& spec, DType to) {
  const auto weight = at.find({spec.name, "weight"});
  const auto master = at.find({spec.name, "master"});
  const auto chosen =
      weight != at.end() &&
              (items[weight->second].dtype == to || master == at.end())
          ? weight
          : master;
  if (chosen == at.end()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint has neither weight nor master of '%s', which a model "
        "of its configuration has",
        spec.name));
  }
  if (items[chosen->second].shape != spec.shape) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint's '%s' has not the shape that its configuration says",
        spec.name));
  }
  if (!CanCast(items[chosen->second].dtype, to)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint's '%s' is %s, which is not written as %s", spec.name,
        std::string(NameOf(items[chosen->second].dtype)),
        std::string(NameOf(to))));
  }
  return chosen->second;
}

}  // namespace

absl::StatusOr<ExportReport> WriteHfLlama(ckpt::StateSource* source,
                                          const ExportRequest& request) {
  const std::string_view option =
      request.dtype.empty() ? "f32" : std::string_view(request.dtype);
  const auto type = std::find_if(
      std::begin(kTypes), std::end(kTypes),
      [option](const TypeRow& row) { return row.option == option; });
  if (type == std::end(kTypes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--dtype %s: f32, bf16 or f16 is expected", std::string(option)));
  }
  HF_ASSIGN_OR_RETURN(const trainer::ModelConfig model,
                      ModelOfAttributes(source->attributes()));

  const std::vector<ckpt::ItemSpec>& items = source->items();
  std::map<std::pair<std::string, std::string>, ckpt::ItemIndex> at;
  for (ckpt::ItemIndex i = 0; i < items.size(); ++i) {
    at[{items[i].name, items[i].kind}] = i;
  }
  std::vector<Made> made;
  SafetensorsToWrite what;
  what.metadata = {{"format", "pt"}};
  what.file_bytes_max = request.shard_bytes_max;
  uint64_t total = 0;
  bool rounded = false;
  uint64_t stored_size = 0;  // the largest of an element
  for (const ckpt::TensorSpec& spec : BuildTensorTable(model, 1).specs) {
    HF_ASSIGN_OR_RETURN(const ckpt::ItemIndex item,
                        Choose(items, at, spec, type->dtype));
    made.push_back(
        {item, items[item].dtype, ckpt::WholeBox(spec.shape), spec.name});
    rounded |= items[item].dtype != type->dtype;
    stored_size =
        std::max(stored_size, static_cast<uint64_t>(SizeOf(items[item].dtype)));
    SafeTensor tensor;
    tensor.name = spec.name;
    tensor.dtype = std::string(SafetensorsNameOf(type->dtype));
    tensor.shape = spec.shape;
    tensor.bytes = static_cast<uint64_t>(made.back().whole.elements()) *
                   static_cast<uint64_t>(SizeOf(type->dtype));
    total += tensor.bytes;
    what.tensors.push_back(std::move(tensor));
  }

  // As many elements of the stored type.
  ckpt::AlignedBuffer stored_memory(
      rounded ? kPieceBytes / static_cast<uint64_t>(SizeOf(type->dtype)) *
                    stored_size
              : 0);
  const auto to_size = static_cast<uint64_t>(SizeOf(type->dtype));
  what.fill = [&](size_t tensor, uint64_t first,
                  std::span<std::byte> out) -> absl::Status {
    const Made& from = made[tensor];
    const int64_t count = static_cast<int64_t>(out.size() / to_size);
    ckpt::WantedRun want;
    want.item = from.item;
    want.part = from.whole;
    want.first = static_cast<int64_t>(first / to_size);
    want.count = count;
    if (from.from == type->dtype) {
      want.out = out;
      return source->Fill({&want, 1});
    }
    const std::span<std::byte> stored = stored_memory.span().first(
        static_cast<size_t>(count) * static_cast<size_t>(SizeOf(from.from)));
    want.out = stored;
    HF_RETURN_IF_ERROR(source->Fill({&want, 1}));
    const int64_t infinite = CastElements(from.from, stored, type->dtype, out);
    if (infinite == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' holds finite values that are too large for %s; nothing is "
        "offered: export with --dtype bf16 or f32",
        from.name, std::string(type->option)));
  };
  if (request.on_progress) {
    what.on_progress = [&](uint64_t done) { request.on_progress(done, total); };
  }

  HF_ASSIGN_OR_RETURN(PartialDirectory directory,
                      PartialDirectory::Create(request.out, total));
  ExportReport report;
  report.tensors = what.tensors.size();
  report.bytes = total;
  HF_ASSIGN_OR_RETURN(report.files, WriteSafetensors(directory, what));
  HF_RETURN_IF_ERROR(
      directory.WriteFile("config.json", HfConfigText(model, type->torch)));
  report.files.emplace_back("config.json");
  HF_RETURN_IF_ERROR(directory.Publish());
  report.notes.push_back(
      rounded
          ? absl::StrFormat("masters, rounded to %s", std::string(type->option))
          : absl::StrFormat("%s, bit for bit",
                            type->dtype == items[made[0].item].dtype &&
                                    items[made[0].item].kind == "weight"
                                ? "weights"
                                : "masters"));
  report.notes.emplace_back(
      "moments, step, data cursor and the run's configuration stay behind; so "
      "does the tokenizer, of which the checkpoint knows nothing");
  return report;
}

}  // namespace holdfast::tools
