// tools/reshard/reshard_command.cc: see reshard_command.h.

#include "tools/reshard/reshard_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/raw_speed.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/stoppable.h"
#include "tools/common/text.h"
#include "tools/convert/outside.h"
#include "tools/reshard/reshard_plan.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/signals.h"
#include "trainer/parallel/job.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckpt-reshard";
constexpr double kGB = 1e9;

uint64_t StoredBytes(const ckpt::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ckpt::ShardFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

struct Prepared {
  std::unique_ptr<ckpt::CheckpointSource> source;
  std::unique_ptr<ckpt::JobLayout> target;
  MemoryShare share;
};

absl::StatusOr<Prepared> Prepare(const ReshardOptions& options) {
  const int processors =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Whether files are coded is known when the manifest is; it costs little.
  HF_ASSIGN_OR_RETURN(
      MemoryShare share,
      ShareMemory(options, /*source_is_coded=*/true, processors));
  Prepared prepared;
  HF_ASSIGN_OR_RETURN(prepared.source,
                      ckpt::CheckpointSource::Open(
                          options.checkpoint, share.source, ckpt::RealClock()));
  HF_RETURN_IF_ERROR(CheckOutsideOf(*prepared.source, options.out));
  HF_ASSIGN_OR_RETURN(prepared.target,
                      TargetLayout(prepared.source->manifest(), options));
  prepared.share = share;
  return prepared;
}

Json SourceJson(const ckpt::CheckpointSource& source) {
  const ckpt::Manifest& manifest = source.manifest();
  Json json;
  json["path"] = source.path();
  json["id"] = ckpt::ToString(manifest.id);
  json["run_id"] = ckpt::ToHex(manifest.run_id);
  json["step"] = manifest.id.step;
  json["layout"] = manifest.layout;
  json["files"] = manifest.files.size();
  json["bytes"] = StoredBytes(manifest);
  return json;
}

// --- --plan-only

struct Rates {
  double read_bytes_per_s = 0;  // 0: could not be measured
  double write_bytes_per_s = 0;
};

struct Estimate {
  Rates alone;    // each while the other rests
  Rates at_once;  // of one disk, both together
  bool same_disk = true;
  bool by_at_once = false;  // the estimate is of these
  double seconds = 0;
};

// A directory of OUT that is there already.
std::string NearestDir(const std::string& out) {
  std::filesystem::path path = std::filesystem::absolute(out);
  std::error_code error;
  while (!std::filesystem::is_directory(path, error) &&
         path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path.string();
}

std::optional<Estimate> Probe(const Prepared& prepared,
                              const ckpt::ConvertPlan& plan,
                              const std::string& out) {
  const ckpt::Manifest& manifest = prepared.source->manifest();
  const std::string dir = NearestDir(out);
  const auto largest =
      std::max_element(manifest.files.begin(), manifest.files.end(),
                       [](const ckpt::ShardFile& a, const ckpt::ShardFile& b) {
                         return a.bytes < b.bytes;
                       });
  const auto read = [&] {
    if (largest == manifest.files.end()) return 0.0;
    return ckpt::MeasureRawRead(prepared.source->path() + "/" + largest->name)
        .value_or(0);
  };
  const auto write = [&] {
    const auto speed = ckpt::MeasureRawSpeed(dir, {.read = false});
    return speed.ok() ? speed->write_bytes_per_s : 0.0;
  };
  const auto reading = [&](const Rates& rates) {
    return rates.read_bytes_per_s > 0
               ? StoredBytes(manifest) / rates.read_bytes_per_s
               : 0;
  };
  const auto writing = [&](const Rates& rates) {
    return plan.file_bytes / rates.write_bytes_per_s;
  };
  Estimate estimate;
  estimate.alone = {read(), write()};
  if (estimate.alone.write_bytes_per_s <= 0) return std::nullopt;
  struct stat a = {}, b = {};
  estimate.same_disk = ::stat(prepared.source->path().c_str(), &a) == 0 &&
                       ::stat(dir.c_str(), &b) == 0 && a.st_dev == b.st_dev;
  if (!estimate.same_disk || estimate.alone.read_bytes_per_s <= 0) {
    estimate.seconds =
        std::max(reading(estimate.alone), writing(estimate.alone));
    return estimate;
  }
  // One disk: its time is shared, or its queue is deep enough for both. The
  // conversion does both at once, so it takes no longer than either says.
  // Without a thread for it the estimate is the one after the other.
  auto reader = ckpt::StartThread("the probe of the disks", [&] {
    estimate.at_once.read_bytes_per_s = read();
  });
  if (reader.ok()) {
    estimate.at_once.write_bytes_per_s = write();
    reader->join();
  }
  estimate.seconds = reading(estimate.alone) + writing(estimate.alone);
  if (estimate.at_once.read_bytes_per_s > 0 &&
      estimate.at_once.write_bytes_per_s > 0) {
    const double together =
        std::max(reading(estimate.at_once), writing(estimate.at_once));
    estimate.by_at_once = together < estimate.seconds;
    estimate.seconds = std::min(estimate.seconds, together);
  }
  return estimate;
}

absl::StatusOr<int> PlanOnly(const ReshardOptions& options) {
  HF_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(options));
  const ckpt::Manifest& manifest = prepared.source->manifest();
  ckpt::ConvertPlanOptions plan_options;
  plan_options.window_bytes = ckpt::kConvertWindowBytes;
  const ckpt::ConvertPlan plan =
      ckpt::PlanConversion(*prepared.target, plan_options);
  HF_ASSIGN_OR_RETURN(const ReadFigures reads,
                      CountReads(manifest, *prepared.target));
  uint64_t longest = 0;
  size_t longest_rank = 0;
  for (size_t f = 0; f < plan.files.size(); ++f) {
    if (plan.files[f].file_bytes > longest) {
      longest = plan.files[f].file_bytes;
      longest_rank = f;
    }
  }
  std::error_code error;
  const auto space = std::filesystem::space(NearestDir(options.out), error);
  std::optional<Estimate> estimate;
  if (options.probe) estimate = Probe(prepared, plan, options.out);
  if (options.json) {
    Json json;
    json["source"] = SourceJson(*prepared.source);
    json["out"] = options.out;
    json["layout"] = prepared.target->description();
    json["files"] = plan.files.size();
    json["bytes"] = plan.file_bytes;
    json["state_bytes"] = plan.state_bytes;
    json["reads"] = reads.reads;
    json["windows"] = plan.windows.size();
    json["rounds"] = plan.rounds.size();
    json["longest_rank"] = longest_rank;
    json["longest_rank_bytes"] = longest;
    json["threads"] = prepared.share.threads;
    json["memory_bytes"] = prepared.share.bytes_planned;
    if (!error) json["free_bytes"] = space.available;
    if (estimate) {
      json["raw_write_bytes_per_s"] = estimate->alone.write_bytes_per_s;
      json["raw_read_bytes_per_s"] = estimate->alone.read_bytes_per_s;
      if (estimate->at_once.write_bytes_per_s > 0) {
        json["raw_write_at_once_bytes_per_s"] =
            estimate->at_once.write_bytes_per_s;
        json["raw_read_at_once_bytes_per_s"] =
            estimate->at_once.read_bytes_per_s;
      }
      json["same_disk"] = estimate->same_disk;
      json["seconds_estimated"] = estimate->seconds;
    }
    PrintJson(json);
    return trainer::kExitFinished;
  }
  std::vector<std::vector<std::string>> rows = {
      {"from", absl::StrFormat("%s, %s, %d files, %s", prepared.source->path(),
                               manifest.layout, manifest.files.size(),
                               BytesText(StoredBytes(manifest)))},
      {"to", absl::StrFormat("%s, %s, %d files, %s", options.out,
                             prepared.target->description(), plan.files.size(),
                             BytesText(plan.file_bytes))},
      {"longest rank",
       absl::StrFormat("%d, %s", longest_rank, BytesText(longest))},
      {"reads", absl::StrFormat("about %s, each stored byte about once",
                                CountText(reads.reads))},
      {"work",
       absl::StrFormat("windows %s, rounds %s, %d threads, %s of buffers",
                       CountText(plan.windows.size()),
                       CountText(plan.rounds.size()), prepared.share.threads,
                       BytesText(prepared.share.bytes_planned))}};
  if (!error) {
    rows.push_back(
        {"free", absl::StrFormat(
                     "%s%s", BytesText(space.available),
                     space.available < plan.file_bytes ? ": NOT ENOUGH" : "")});
  }
  if (estimate) {
    const char* const how = !estimate->same_disk   ? "two disks at once"
                            : estimate->by_at_once ? "one disk, both at once"
                                                   : "one disk, in turns";
    const Rates& rates =
        estimate->by_at_once ? estimate->at_once : estimate->alone;
    rows.push_back(
        {"estimate",
         absl::StrFormat("%s at least: %s, reads %.2f GB/s, writes %.2f GB/s",
                         DurationText(estimate->seconds), how,
                         rates.read_bytes_per_s / kGB,
                         rates.write_bytes_per_s / kGB)});
  }
  std::fputs(TableText(rows).c_str(), stdout);
  return trainer::kExitFinished;
}

// --- the conversion

void PrintResult(const ReshardOptions& options, const Prepared& prepared,
                 const ckpt::WriteCheckpointReport& report) {
  const ckpt::Manifest& manifest = prepared.source->manifest();
  const std::string before = ckpt::ToHex(ckpt::LogicalDigest(manifest));
  const std::string after = ckpt::ToHex(report.digest);
  if (options.json) {
    Json json;
    json["source"] = SourceJson(*prepared.source);
    json["out"] = options.out;
    json["path"] = report.path;
    json["id"] = ckpt::ToString(report.id);
    json["run_id"] = ckpt::ToHex(report.run_id);
    json["layout"] = prepared.target->description();
    json["files"] = report.files;
    json["bytes"] = report.bytes_stored;
    json["state_bytes"] = report.bytes_state;
    json["bytes_read"] = report.bytes_read;
    json["bytes_verified"] = report.bytes_verified;
    json["was_complete"] = report.was_complete;
    json["digest_before"] = before;
    json["digest_after"] = after;
    json["equal"] = before == after;
    json["threads"] = prepared.share.threads;
    json["seconds"] = report.seconds;
    PrintJson(json);
    return;
  }
  std::printf("%s: %s, %s in %d %s\n", report.path.c_str(),
              prepared.target->description().c_str(),
              BytesText(static_cast<double>(report.bytes_stored)).c_str(),
              report.files, report.files == 1 ? "file" : "files");
  std::printf("digest before  %s\ndigest after   %s  %s\n", before.c_str(),
              after.c_str(), before == after ? "equal" : "NOT EQUAL");
  const double rate =
      report.seconds > 0 ? report.bytes_stored / report.seconds : 0;
  if (report.was_complete) {
    std::printf("it was there already and was verified in %s, %s/s\n",
                DurationText(report.seconds).c_str(), BytesText(rate).c_str());
    return;
  }
  std::string note;
  if (report.bytes_verified > 0) {
    note = absl::StrFormat("; %s were there already and were verified",
                           BytesText(report.bytes_verified));
  }
  std::printf("%s read in %s, %s/s%s\n",
              BytesText(static_cast<double>(report.bytes_read)).c_str(),
              DurationText(report.seconds).c_str(), BytesText(rate).c_str(),
              note.c_str());
}

absl::StatusOr<int> Convert(const ReshardOptions& options,
                            const Prepared& prepared, ckpt::Group* group) {
  const ckpt::Manifest& manifest = prepared.source->manifest();
  const CodecOption codec = ParseCodec(options.codec);
  std::atomic<bool> stop = false;
  Progress progress({.doing = "resharding"}, ckpt::RealClock());

  ckpt::WriteCheckpointOptions write;
  write.out = options.out;
  write.form = options.bare ? ckpt::WriteCheckpointOptions::Form::kCheckpoint
                            : ckpt::WriteCheckpointOptions::Form::kRun;
  write.step = manifest.id.step;
  write.attributes = {
      {".resharded_from",
       absl::StrFormat("%s of run %s, layout %s", ckpt::ToString(manifest.id),
                       ckpt::ToHex(manifest.run_id), manifest.layout)}};
  write.codec = codec.codec;
  write.codec_level = codec.level;
  write.threads = prepared.share.threads;
  write.stop = &stop;
  write.group = group;
  const bool speaks = group == nullptr || ckpt::Index(group->rank()) == 0;
  write.on_progress = [&](const ckpt::WriteProgress& at) {
    if (speaks) {
      const std::string_view phase = at.phase;
      progress.SetDoing(phase == "reserving"   ? "reserving space"
                        : phase == "verifying" ? "verifying what is there"
                                               : "resharding");
      progress.Update(at.bytes_done, at.bytes_total);
    }
    if (StopAsked()) stop = true;
  };
  const auto report = ckpt::WriteCheckpoint(
      prepared.source.get(), *prepared.target, write, ckpt::RealClock());
  if (speaks) progress.Finish();
  HF_RETURN_IF_ERROR(report.status());
  if (!speaks) return trainer::kExitFinished;
  PrintResult(options, prepared, *report);
  if (report->digest != ckpt::LogicalDigest(manifest)) {
    return absl::InternalError(
        "the digests differ although every item's agrees");
  }
  return trainer::kExitFinished;
}

}  // namespace

int RunReshard(const ReshardOptions& options) {
  trainer::InstallSignalHandlers();
  const absl::StatusOr<std::unique_ptr<trainer::Job>> job =
      trainer::OpenJob(/*heartbeat=*/nullptr);
  if (!job.ok()) return ReportFailure(kProgram, job.status());
  const bool leads = (*job)->rank() == 0;
  if (options.plan_only) {
    absl::StatusOr<int> code = trainer::kExitFinished;
    if (leads) code = PlanOnly(options);
    (*job)->Finalize().IgnoreError();
    return code.ok() ? *code : ReportFailure(kProgram, code.status());
  }
  std::unique_ptr<ckpt::Group> group;
  if ((*job)->size() > 1) {
    auto opened = (*job)->OpenCheckpointGroup();
    if (!opened.ok()) {
      (*job)->Abort(ReportFailure(kProgram, opened.status()));
    }
    group = *std::move(opened);
  }
  const absl::StatusOr<Prepared> prepared = Prepare(options);
  if (!prepared.ok()) {
    // What all ranks find wrong is said once, by rank 0.
    ckpt::Clock& clock = ckpt::RealClock();
    if (leads) ReportFailure(kProgram, prepared.status());
    bool all_know = true;
    if (group) {
      all_know = leads
                     ? ckpt::TellRefusal(group.get(), prepared.status(), clock)
                     : ckpt::HearRefusal(group.get(), clock);
    }
    // The job's end is heard as the launcher's SIGTERM, too.
    if (!leads && !all_know && !StopAsked()) {
      ReportFailure(kProgram, prepared.status());
    }
    if (!all_know) (*job)->Abort(StoppedCode(prepared.status()));
    group.reset();
    (*job)->Finalize().IgnoreError();
    return StoppedCode(prepared.status());
  }
  const absl::StatusOr<int> code = Convert(options, *prepared, group.get());
  if (!code.ok() && leads) ReportFailure(kProgram, code.status());
  if (group && absl::IsDeadlineExceeded(code.status())) {
    // Somebody is gone, and MPI would wait for it.
    (*job)->Abort(StoppedCode(code.status()));
  }
  group.reset();
  (*job)->Finalize().IgnoreError();
  return code.ok() ? *code : StoppedCode(code.status());
}

}  // namespace holdfast::tools
