// tools/reshard/reshard_plan.cc: see reshard_plan.h.

#include "tools/reshard/reshard_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/while.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/plain_layouts.h"
#include "ckpt/plan/load_plan.h"
#include "tools/convert/train_target.h"

namespace holdfast::tools {
namespace {

constexpr size_t kWindowsCounted = 2000;

std::optional<ckpt::DType> WeightTypeOf(const ckpt::Manifest& source) {
  for (const ckpt::ItemSpec& item : source.items) {
    if (item.kind == "weight") return item.dtype;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ckpt::JobLayout>> TargetLayout(
    const ckpt::Manifest& source, const ReshardOptions& options) {
  const auto model = ModelOfAttributes(source.attributes);
  if (!model.ok()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the layout of a model is wanted, and the checkpoint's attributes do "
        "not say which model it is of: %s",
        std::string(model.status().message())));
  }
  const auto weight = WeightTypeOf(source);
  if (!weight.has_value()) {
    return absl::FailedPreconditionError(
        "the checkpoint has no item of kind 'weight': it is not of a model of "
        "this trainer");
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::TrainLayout> layout,
                      MakeTrainTarget(*model,
                                      *weight == ckpt::DType::kBf16
                                          ? trainer::ComputeType::kBf16
                                          : trainer::ComputeType::kF32,
                                      {.tp = options.tp,
                                       .pp = options.pp,
                                       .dp = options.dp,
                                       .stages = options.stages}));
  if (layout->items() == source.items) return layout;
  // A state that has no moments, for example.
  auto subset = ckpt::MakeSubsetLayout(std::move(layout), source.items);
  if (subset.ok()) return subset;
  return absl::FailedPreconditionError(absl::StrFormat(
      "the checkpoint has other items than the model that it names: %s",
      std::string(subset.status().message())));
}

absl::StatusOr<MemoryShare> ShareMemory(const ReshardOptions& options,
                                        bool source_is_coded, int processors) {
  return ShareMemory(
      {.limit = options.memory_limit,
       .threads = options.threads,
       .processors = processors,
       .thread_bytes = ConvertThreadBytes(ParseCodec(options.codec).codec),
       .source_is_coded = source_is_coded});
}

absl::StatusOr<ReadFigures> CountReads(const ckpt::Manifest& source,
                                       const ckpt::JobLayout& target) {
  ckpt::ConvertPlanOptions plan_options;
  plan_options.window_bytes = ckpt::kConvertWindowBytes;
  const ckpt::ConvertPlan plan = PlanConversion(target, plan_options);
  const std::vector<bool> all(target.items().size(), true);
  HF_ASSIGN_OR_RETURN(const ckpt::LoadPlanner planner,
                      ckpt::LoadPlanner::Create(source, target.items(), all));
  const size_t every =
      (plan.windows.size() + kWindowsCounted - 1) / kWindowsCounted;
  ReadFigures figures;
  uint64_t counted = 0;
  for (size_t w = 0; w < plan.windows.size(); w += std::max<size_t>(1, every)) {
    std::vector<ckpt::ReadStep> steps;
    for (size_t i = plan.windows[w].first; i < plan.windows[w].end; ++i) {
      const ckpt::UnitRef& ref = plan.order[i];
      const ckpt::TargetFile& file = plan.files[ref.file];
      for (const ckpt::DigestPiece& piece :
           PiecesOf(target.items(), file, file.units[ref.unit])) {
        HF_RETURN_IF_ERROR(planner.Append({.item = piece.item,
                                           .part = piece.part,
                                           .first = piece.first,
                                           .count = piece.count},
                                          &steps));
      }
    }
    counted += plan.windows[w].bytes;
    ckpt::SortAndJoin(&steps);
    // Ranges of the files, as far as whole blocks of a unit's length go.
    uint32_t last_file = UINT32_MAX;
    uint64_t end = 0;
    for (const ckpt::ReadStep& step : steps) {
      const uint64_t from = step.file_offset / ckpt::kUnitBytesMax;
      const uint64_t to =
          (step.file_offset + (step.rows - 1) * step.file_stride +
           step.row_bytes + ckpt::kUnitBytesMax - 1) /
          ckpt::kUnitBytesMax;
      if (step.file != last_file) end = 0;
      last_file = step.file;
      const uint64_t begin = std::max(from, end);
      if (to > begin) {
        figures.reads += (to - begin + 1) / 2;  // of two units each
        end = to;
      }
      figures.bytes_wanted += step.rows * step.row_bytes;
    }
  }
  if (counted > 0) {
    const double more = static_cast<double>(plan.unit_bytes) / counted;
    figures.reads = static_cast<uint64_t>(figures.reads * more);
  }
  figures.bytes_wanted = plan.state_bytes;
  figures.bytes_read = plan.state_bytes;
  return figures;
}

}  // namespace holdfast::tools
