// tools/ckptctl/export_command.cc: `ckptctl export`: a checkpoint's state in
// the files of other programs.

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/convert/checkpoint_source.h"
#include "tools/ckptctl/commands.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/stoppable.h"
#include "tools/common/text.h"
#include "tools/convert/formats.h"
#include "tools/convert/memory_share.h"
#include "tools/convert/outside.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckptctl export";

absl::Status Export(const ExportOptions& options) {
  HF_ASSIGN_OR_RETURN(const Format format, FindExport(options.format));
  MemoryWish wish;
  wish.limit = options.memory_limit;
  wish.threads = options.threads;
  wish.processors =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // A window as it is written, and as it is stored.
  wish.thread_bytes = 2 * kWindowBytes;
  HF_ASSIGN_OR_RETURN(const MemoryShare share, ShareMemory(wish));
  HF_ASSIGN_OR_RETURN(const auto source,
                      ckpt::CheckpointSource::Open(
                          options.checkpoint, share.source, ckpt::RealClock()));
  HF_RETURN_IF_ERROR(CheckOutsideOf(*source, options.out));
  Progress::Options shown;
  shown.doing = "exporting";
  Progress progress(shown, ckpt::RealClock());
  ExportRequest request;
  request.out = options.out;
  request.dtype = options.dtype;
  request.shard_bytes_max = options.shard_bytes_max;
  request.on_progress = [&](uint64_t done, uint64_t total) {
    progress.Update(done, total);
  };
  request.threads = share.threads;
  request.stop = &StopAsked;
  const absl::Time start = ckpt::RealClock().WallTime();
  const auto report = format.write(source.get(), request);
  progress.Finish();
  if (absl::IsCancelled(report.status())) {
    return absl::CancelledError(absl::StrFormat(
        "stopped; %s was not made and nothing is left of it", options.out));
  }
  if (absl::IsAlreadyExists(report.status())) {
    // A disagreement, as two conversions into one place are, not a bad disk.
    return absl::FailedPreconditionError(report.status().message());
  }
  HF_RETURN_IF_ERROR(report.status());
  const double seconds =
      absl::ToDoubleSeconds(ckpt::RealClock().WallTime() - start);
  const std::string id = ckpt::ToString(source->manifest().id);
  if (options.json) {
    Json json;
    json["format"] = options.format;
    json["checkpoint"] = id;
    json["path"] = source->path();
    json["layout"] = source->manifest().layout;
    json["out"] = options.out;
    json["tensors"] = report->tensors;
    json["bytes"] = report->bytes;
    json["bytes_read"] = source->bytes_read();
    json["files"] = report->files;
    json["threads"] = share.threads;
    json["seconds"] = seconds;
    json["notes"] = report->notes;
    PrintJson(json);
    return absl::OkStatus();
  }
  std::printf(
      "%s: %s of %s; %d tensors, %s in %s, %s/s\n",
      Printable(options.out).c_str(), options.format.c_str(), id.c_str(),
      static_cast<int>(report->tensors),
      BytesText(static_cast<double>(report->bytes)).c_str(),
      DurationText(seconds).c_str(),
      BytesText(static_cast<double>(report->bytes) / std::max(seconds, 1e-9))
          .c_str());
  for (const std::string& note : report->notes) {
    std::printf("note: %s\n", Printable(note).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

int RunExport(const ExportOptions& options) {
  trainer::InstallSignalHandlers();
  const absl::Status status = Export(options);
  if (!status.ok()) ReportFailure(kProgram, status);
  return StoppedCode(status);
}

}  // namespace holdfast::tools
