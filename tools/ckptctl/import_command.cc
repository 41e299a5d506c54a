// tools/ckptctl/import_command.cc: `ckptctl import`: a checkpoint of the state
// that other programs' files hold.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/convert/plain_layouts.h"
#include "tools/ckptctl/commands.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/stoppable.h"
#include "tools/common/text.h"
#include "tools/convert/codec_option.h"
#include "tools/convert/formats.h"
#include "tools/convert/memory_share.h"
#include "tools/convert/train_target.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckptctl import";

absl::StatusOr<std::unique_ptr<ckpt::JobLayout>> LayoutOf(
    const ImportedState& state, const ImportOptions& options,
    trainer::ComputeType compute) {
  if (!state.model) {
    if (options.tp != 1 || options.pp != 1 || !options.stages.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--tp, --pp and --stages are for states of decoders; what is in "
          "these files is none that we know%s, and is cut by rows into --dp "
          "parts",
          state.why_no_model.empty() ? "" : " (" + state.why_no_model + ")"));
    }
    return ckpt::MakeRowLayout(state.source->items(), options.dp);
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::JobLayout> layout,
                      MakeTrainTarget(*state.model, compute,
                                      {.tp = options.tp,
                                       .pp = options.pp,
                                       .dp = options.dp,
                                       .stages = options.stages}));
  return layout;
}

void PrintAsJson(const ImportOptions& options, const ImportedState& state,
                 const std::string& layout,
                 const ckpt::WriteCheckpointReport& report) {
  Json json;
  json["format"] = options.format;
  json["from"] = options.from;
  json["out"] = options.out;
  json["path"] = report.path;
  json["id"] = ckpt::ToString(report.id);
  json["step"] = state.step;
  json["layout"] = layout;
  json["digest"] = ckpt::ToHex(report.digest);
  json["bytes_state"] = report.bytes_state;
  json["bytes_stored"] = report.bytes_stored;
  json["bytes_read"] = report.bytes_read;
  json["files"] = report.files;
  json["seconds"] = report.seconds;
  json["model"] = state.model ? Json(ModelToml(*state.model)) : Json(nullptr);
  json["notes"] = state.notes;
  PrintJson(json);
}

void PrintText(const ImportOptions& options, const ImportedState& state,
               const std::string& layout,
               const ckpt::WriteCheckpointReport& report) {
  std::printf("%s: %s as %s, digest %s; %s in %d %s, %s\n",
              Printable(report.path).c_str(), Printable(options.from).c_str(),
              layout.c_str(), ckpt::ToHex(report.digest).c_str(),
              BytesText(static_cast<double>(report.bytes_stored)).c_str(),
              static_cast<int>(report.files),
              report.files == 1 ? "file" : "files",
              DurationText(report.seconds).c_str());
  for (const std::string& note : state.notes) {
    std::printf("note: %s\n", Printable(note).c_str());
  }
  if (!state.model) return;
  std::printf(
      "\nholdfast train --config FILE --run NEW --init-from %s takes it, with "
      "this in FILE:\n%s",
      Printable(options.out).c_str(), ModelToml(*state.model).c_str());
}

absl::Status Import(const ImportOptions& options) {
  HF_ASSIGN_OR_RETURN(const Format format, FindImport(options.format));
  ImportRequest request;
  request.from = options.from;
  if (!format.takes_keys &&
      (!options.model_file.empty() || !options.ignore.empty())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--model and --ignore mean nothing to --from %s", options.format));
  }
  request.model_file = options.model_file;
  request.ignore = options.ignore;
  const CodecOption codec = ParseCodec(options.codec);
  MemoryWish wish;
  wish.limit = options.memory_limit;
  wish.threads = options.threads;
  wish.processors =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  wish.thread_bytes = ConvertThreadBytes(codec.codec);
  wish.reads_checkpoint = false;
  HF_ASSIGN_OR_RETURN(MemoryShare share, ShareMemory(wish));
  request.readers = share.threads;
  request.memory_max = MemoryToOpen(wish.limit);
  request.compute = options.compute == "f32" ? trainer::ComputeType::kF32
                                             : trainer::ComputeType::kBf16;
  HF_ASSIGN_OR_RETURN(ImportedState state, format.open(request));
  wish.source_bytes = state.memory_bytes;
  HF_ASSIGN_OR_RETURN(share, ShareMemory(wish));
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<ckpt::JobLayout> layout,
      LayoutOf(state, options, state.compute.value_or(request.compute)));

  Progress::Options shown;
  shown.doing = "importing";
  Progress progress(shown, ckpt::RealClock());
  ckpt::WriteCheckpointOptions write;
  write.out = options.out;
  write.step = state.step;
  write.title = absl::StrFormat("%s %s to %s", options.format, options.from,
                                layout->description());
  write.codec = codec.codec;
  write.codec_level = codec.level;
  write.threads = share.threads;
  std::atomic<bool> stop = false;
  write.stop = &stop;
  write.on_progress = [&](const ckpt::WriteProgress& at) {
    progress.Update(at.bytes_done, at.bytes_total);
    if (StopAsked()) stop = true;
  };
  const auto report = ckpt::WriteCheckpoint(state.source.get(), *layout, write,
                                            ckpt::RealClock());
  progress.Finish();
  HF_RETURN_IF_ERROR(report.status());
  if (options.json) {
    PrintAsJson(options, state, layout->description(), *report);
  } else {
    PrintText(options, state, layout->description(), *report);
  }
  return absl::OkStatus();
}

}  // namespace

int RunImport(const ImportOptions& options) {
  trainer::InstallSignalHandlers();
  const absl::Status status = Import(options);
  if (!status.ok()) ReportFailure(kProgram, status);
  return StoppedCode(status);
}

}  // namespace holdfast::tools
