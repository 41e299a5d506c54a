// tools/convert/hf_export.cc: a state as config.json and safetensors.

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/cast.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/partial_directory.h"
#include "tools/convert/safetensors_directory.h"
#include "tools/convert/safetensors_writer.h"
#include "tools/convert/train_target.h"
#include "tools/convert/work_threads.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

constexpr char kConfigName[] = "config.json";

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

// Whether a directory in the making may hold it.
bool IsOurs(const std::string& name) {
  return name == kConfigName || name == kSafetensorsIndex ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
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

  const auto to_size = static_cast<uint64_t>(SizeOf(type->dtype));
  WorkThreads how;
  how.threads = std::clamp(request.threads, 1, source->fills_at_once());
  how.stop = request.stop;
  std::atomic<uint64_t> done = 0;
  if (request.on_progress) {
    how.on_tick = [&] { request.on_progress(done, total); };
  }
  // As stored, a window is no longer than kWindowBytes either.
  what.window_bytes = kWindowBytes / std::max(stored_size, to_size) * to_size;
  std::vector<ckpt::AlignedBuffer> stored(static_cast<size_t>(how.threads));
  what.fill = [&](std::span<const TensorRun> runs, int worker) -> absl::Status {
    ckpt::AlignedBuffer& memory = stored[static_cast<size_t>(worker)];
    if (rounded && memory.size() == 0) {
      memory = ckpt::AlignedBuffer(what.window_bytes / to_size * stored_size);
    }
    std::span<std::byte> rest = memory.span();
    std::vector<ckpt::WantedRun> wants;
    for (const TensorRun& run : runs) {
      const Made& from = made[run.tensor];
      ckpt::WantedRun want;
      want.item = from.item;
      want.part = from.whole;
      want.first = static_cast<int64_t>(run.first / to_size);
      want.count = static_cast<int64_t>(run.out.size() / to_size);
      want.out = run.out;
      if (from.from != type->dtype) {
        const uint64_t bytes = ckpt::BytesOf(items[from.item], want.count);
        want.out = rest.first(bytes);
        rest = rest.subspan(bytes);
      }
      wants.push_back(want);
    }
    HF_RETURN_IF_ERROR(source->Fill(wants));
    for (size_t i = 0; i < runs.size(); ++i) {
      const Made& from = made[runs[i].tensor];
      if (from.from == type->dtype ||
          CastElements(from.from, wants[i].out, type->dtype, runs[i].out) ==
              0) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrFormat(
          "'%s' holds finite values that are too large for %s; nothing is "
          "offered: export with --dtype bf16 or f32",
          from.name, std::string(type->option)));
    }
    return absl::OkStatus();
  };

  HF_ASSIGN_OR_RETURN(PartialDirectory directory,
                      PartialDirectory::Create(request.out, total, &IsOurs));
  ExportReport report;
  report.tensors = what.tensors.size();
  report.bytes = total;
  HF_ASSIGN_OR_RETURN(report.files,
                      WriteSafetensors(directory, what, how, &done));
  HF_RETURN_IF_ERROR(
      directory.WriteFile(kConfigName, HfConfigText(model, type->torch)));
  report.files.emplace_back(kConfigName);
  if (request.stop && request.stop()) return absl::CancelledError("stopped");
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
