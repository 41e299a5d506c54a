// tools/holdfast/doctor_command.cc: `holdfast doctor`: what a directory is good
// for, before anyone relies on it, and which GPUs runs on this machine could
// use.
//
// Three looks at the directory, each by trying: what kernel and file system can
// do (ckpt/storage/storage_probe.h), a small commit through the Storage that a
// run would open there, and the raw speed. Files that the speed is measured
// with have no name, so nothing stays behind however this ends; the few names
// of the other two live for milliseconds, with signals held back.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/file_system.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/raw_speed.h"
#include "ckpt/storage/storage_probe.h"
#include "kernels/device_plugin.h"
#include "tools/common/json_output.h"
#include "tools/common/text.h"
#include "tools/holdfast/commands.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "holdfast doctor";
constexpr uint64_t kFreeShare = 8;

// One thing that was tried.
struct Finding {
  std::string name;
  absl::Status status;
  bool needed = false;  // without it no save here could be relied on
  std::string what;     // what Holdfast does about it
};

struct Diagnosis {
  ckpt::FileSystemInfo file_system;
  std::vector<kernels::DeviceInfo> gpus;
  std::vector<Finding> findings;
  double sync_seconds = 0;  // of one block, the median of kTries
  double put_seconds = 0;   // a small file made durable, the median of kTries
  absl::StatusOr<ckpt::RawSpeed> speed = absl::UnknownError("not measured");

  bool fit() const {
    return std::all_of(findings.begin(), findings.end(), [](const Finding& f) {
      return f.status.ok() || !f.needed;
    });
  }
};

// Holds signals back that would end the program in the middle of something.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

double Now() { return absl::ToDoubleSeconds(ckpt::RealClock().Monotonic()); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<Finding> Explain(const ckpt::StorageProbe& probe) {
  std::vector<Finding> findings;
  const auto add = [&](const char* name, const absl::Status& status,
                       bool needed, const char* if_ok, const char* if_not) {
    findings.push_back({name, status, needed, status.ok() ? if_ok : if_not});
  };
  add("io_uring", probe.io_uring, false, "saves and loads go through it",
      "plain POSIX calls take its place, one at a time: slower");
  add("O_DIRECT", probe.direct_io, false,
      "files are written and read past the page cache",
      "files go through the page cache, at the cost of memory and speed");
  add("registered buffers", probe.registered_buffers, false,
      "the state's memory is pinned once, not for each write",
      "memory is pinned for each write: a little slower; `ulimit -l` bounds "
      "it");
  add("huge pages", probe.huge_pages, false,
      "the state's memory is in long runs, which the device moves faster",
      "the state's memory is in pages of 4 KiB: saves and loads are slower");
  add("directory sync", probe.directory_sync, true,
      "names survive a power cut before they count",
      "no save could become durable: saves here would fail");
  add("exclusive create", probe.exclusive_create, true,
      "no name is used twice, no file of another job is written to",
      "two jobs could write one file: do not use this directory");
  const bool renames = probe.exclusive_rename.ok();
  add("hard link", probe.hard_link, !renames,
      "a manifest appears whole or not at all, and only once",
      renames ? "a rename that does not replace takes its place"
              : "a manifest cannot be put atomically: saves here would fail");
  add("rename, no replace", probe.exclusive_rename, false,
      "a start renames the checkpoints that it counts on",
      "a start looks first, then renames: two starts in the same instant could "
      "meet");
  return findings;
}

// What a save does with names, in a folder of its own: one file, its syncs, and
// small files put in place.
absl::Status Rehearse(ckpt::Storage& storage, const std::string& folder,
                      Diagnosis* found) {
  constexpr int kTries = 5;
  ckpt::Blocking io(storage);
  ckpt::AlignedBuffer block(ckpt::kStorageAlignment);
  const ckpt::FileId file{1};
  HF_RETURN_IF_ERROR(io.MakeDir(folder));
  HF_RETURN_IF_ERROR(io.Create(folder + "/shard", file, block.size()));
  std::vector<double> syncs, puts;
  for (int i = 0; i < kTries; ++i) {
    HF_RETURN_IF_ERROR(io.Write(file, 0, block.span()));
    const double begin = Now();
    HF_RETURN_IF_ERROR(io.Sync(file));
    syncs.push_back(Now() - begin);
  }
  HF_RETURN_IF_ERROR(io.Close(file));
  HF_RETURN_IF_ERROR(io.SyncDir(folder));
  for (int i = 0; i < kTries; ++i) {
    const double begin = Now();
    HF_RETURN_IF_ERROR(
        io.PutIfAbsent(absl::StrFormat("%s/put-%d", folder, i), block.span()));
    puts.push_back(Now() - begin);
  }
  const absl::Status again = io.PutIfAbsent(folder + "/put-0", block.span());
  if (!absl::IsAlreadyExists(again)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "putting a file that is there: expected to be refused, got %s",
        again.ok() ? "success" : std::string(again.message())));
  }
  HF_ASSIGN_OR_RETURN(const std::vector<std::byte> back,
                      io.Get(folder + "/put-0", block.size()));
  if (!std::equal(back.begin(), back.end(), block.data(),
                  block.data() + block.size())) {
    return absl::DataLossError("a small file reads back other bytes");
  }
  found->sync_seconds = Median(syncs);
  found->put_seconds = Median(puts);
  return absl::OkStatus();
}

absl::Status RehearseIn(const std::string& dir, Diagnosis* found) {
  const SignalsHeld held;
  ckpt::StorageOptions options;
  options.location = "file:" + dir;
  options.fault = "";
  HF_ASSIGN_OR_RETURN(const auto storage, ckpt::OpenStorage(options));
  const std::string folder = absl::StrFormat("holdfast-doctor.%d", ::getpid());
  const absl::Status status = Rehearse(*storage, folder, found);
  ckpt::Blocking io(*storage);
  if (const auto entries = io.List(folder); entries.ok()) {
    for (const ckpt::DirEntry& entry : *entries) {
      io.Remove(folder + "/" + entry.name).IgnoreError();
    }
  }
  const absl::Status removed = io.Remove(folder);
  if (status.ok() && !removed.ok()) return removed;
  return status;
}

// What device = cuda would find; loads the plug-in, and no memory of a GPU is
// taken beyond what its driver needs to answer.
Finding LookAtGpus(std::vector<kernels::DeviceInfo>* gpus) {
  std::string driver;
  const auto look = [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(const kernels::DevicePlugin* const cuda,
                        kernels::LoadDevicePlugin("cuda"));
    HF_ASSIGN_OR_RETURN(driver, cuda->Driver());
    HF_ASSIGN_OR_RETURN(const int count, cuda->DeviceCount());
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      HF_ASSIGN_OR_RETURN(kernels::DeviceInfo info, cuda->Info(ordinal));
      gpus->push_back(std::move(info));
    }
    return absl::OkStatus();
  };
  Finding finding{"GPU", look(), /*needed=*/false, "runs use the processor"};
  if (!finding.status.ok()) return finding;
  finding.what = absl::StrFormat("device = cuda works here (%s):", driver);
  for (const kernels::DeviceInfo& gpu : *gpus) {
    absl::StrAppendFormat(&finding.what, " %d %s, %s free of %s;", gpu.ordinal,
                          gpu.name,
                          BytesText(static_cast<double>(gpu.bytes_free)),
                          BytesText(static_cast<double>(gpu.bytes_total)));
  }
  finding.what.pop_back();
  return finding;
}

absl::StatusOr<Diagnosis> Examine(const DoctorOptions& options) {
  Diagnosis found;
  HF_ASSIGN_OR_RETURN(found.file_system, ckpt::LookAtFileSystem(options.dir));
  {
    const SignalsHeld held;
    HF_ASSIGN_OR_RETURN(const ckpt::StorageProbe probe,
                        ckpt::ProbeStorage(options.dir));
    found.findings = Explain(probe);
  }
  const absl::Status rehearsed = RehearseIn(options.dir, &found);
  found.findings.push_back(
      {"a commit, rehearsed", rehearsed, true,
       rehearsed.ok() ? "a file, its syncs and a manifest put in place"
                      : "a save here would fail in the same way"});
  found.findings.push_back(LookAtGpus(&found.gpus));
  ckpt::RawSpeedOptions speed;
  speed.time_max = absl::Seconds(options.seconds) / 2;
  // Never so much that others feel it.
  const uint64_t bytes_free = found.file_system.bytes_free;
  speed.bytes_max =
      std::min(uint64_t{options.mib_max} << 20, bytes_free / kFreeShare);
  if (bytes_free / kFreeShare < speed.block_bytes * speed.depth) {
    found.speed = absl::ResourceExhaustedError(absl::StrFormat(
        "it is measured with an eighth of the free space and at least %s; %s "
        "are free",
        BytesText(static_cast<double>(speed.block_bytes * speed.depth)),
        BytesText(static_cast<double>(bytes_free))));
  } else {
    found.speed = ckpt::MeasureRawSpeed(options.dir, speed);
  }
  return found;
}

std::string WarningOf(const Diagnosis& found) {
  if (found.file_system.in_memory) {
    return "this is memory, not a disk: nothing here survives a power cut or a "
           "restart of the machine";
  }
  if (found.file_system.network) {
    return "other machines may see new names late here; every start checks "
           "that "
           "all ranks see one directory";
  }
  return "";
}

void PrintAsJson(const DoctorOptions& options, const Diagnosis& found) {
  Json json;
  json["directory"] = options.dir;
  json["fit"] = found.fit();
  json["file_system"] = found.file_system.type;
  json["bytes_free"] = found.file_system.bytes_free;
  json["bytes_total"] = found.file_system.bytes_total;
  json["in_memory"] = found.file_system.in_memory;
  json["network"] = found.file_system.network;
  json["findings"] = Json::array();
  for (const Finding& finding : found.findings) {
    json["findings"].push_back(
        {{"name", finding.name},
         {"ok", finding.status.ok()},
         {"needed", finding.needed},
         {"system_says", std::string(finding.status.message())},
         {"what", finding.what}});
  }
  json["gpus"] = Json::array();
  for (const kernels::DeviceInfo& gpu : found.gpus) {
    json["gpus"].push_back({{"ordinal", gpu.ordinal},
                            {"name", gpu.name},
                            {"bus", gpu.bus},
                            {"capability_major", gpu.capability_major},
                            {"capability_minor", gpu.capability_minor},
                            {"bytes_total", gpu.bytes_total},
                            {"bytes_free", gpu.bytes_free}});
  }
  if (found.speed.ok()) {
    json["write_bytes_per_s"] = found.speed->write_bytes_per_s;
    if (found.speed->read_bytes_per_s > 0) {
      json["read_bytes_per_s"] = found.speed->read_bytes_per_s;
    }
    json["measured_with"] = found.speed->method;
    json["bytes_measured"] = found.speed->bytes;
  } else {
    json["speed_unknown"] = std::string(found.speed.status().message());
  }
  json["sync_seconds"] = found.sync_seconds;
  json["put_seconds"] = found.put_seconds;
  if (const std::string warning = WarningOf(found); !warning.empty()) {
    json["warning"] = warning;
  }
  PrintJson(json);
}

void PrintSpeed(const absl::StatusOr<ckpt::RawSpeed>& speed) {
  if (!speed.ok()) {
    std::printf("\nraw speed  unknown: %s\n",
                std::string(speed.status().message()).c_str());
    return;
  }
  std::printf("\nraw write  %s/s, its sync included\n",
              BytesText(speed->write_bytes_per_s).c_str());
  if (speed->read_bytes_per_s > 0) {
    std::printf("raw read   %s/s\n",
                BytesText(speed->read_bytes_per_s).c_str());
  } else {
    std::printf(
        "raw read   unknown: without O_DIRECT only the page cache "
        "would be measured\n");
  }
  std::printf("           (%s; %s)\n", speed->method.c_str(),
              BytesText(static_cast<double>(speed->bytes)).c_str());
}

void PrintText(const DoctorOptions& options, const Diagnosis& found) {
  std::printf(
      "%s: %s, %s free of %s\n\n", options.dir.c_str(),
      found.file_system.type.c_str(),
      BytesText(static_cast<double>(found.file_system.bytes_free)).c_str(),
      BytesText(static_cast<double>(found.file_system.bytes_total)).c_str());
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : found.findings) {
    rows.push_back({finding.name,
                    finding.status.ok() ? "yes"
                    : finding.needed    ? "NO, and it is needed"
                                        : "no",
                    finding.what});
  }
  std::printf("%s", TableText(rows).c_str());
  for (const Finding& finding : found.findings) {
    if (finding.status.ok()) continue;
    std::printf("  %s: %s\n", finding.name.c_str(),
                std::string(finding.status.message()).c_str());
  }
  PrintSpeed(found.speed);
  if (found.sync_seconds > 0) {
    std::printf("a sync     %s, a small file made durable %s\n",
                DurationText(found.sync_seconds).c_str(),
                DurationText(found.put_seconds).c_str());
  }
  if (const std::string warning = WarningOf(found); !warning.empty()) {
    std::printf("\nwarning: %s\n", warning.c_str());
  }
  std::printf("\n%s\n", found.fit() ? "Checkpoints can be kept here."
                                    : "Checkpoints cannot be relied on here.");
}

}  // namespace

int RunDoctor(const DoctorOptions& options) {
  const auto found = Examine(options);
  if (!found.ok()) {
    // What is not there, or not ours, is a wrong option, not a lost checkpoint.
    if (absl::IsNotFound(found.status())) {
      return ReportFailure(
          kProgram, absl::InvalidArgumentError(found.status().message()));
    }
    return ReportFailure(kProgram, found.status());
  }
  if (options.json) {
    PrintAsJson(options, *found);
  } else {
    PrintText(options, *found);
  }
  return found->fit() ? trainer::kExitFinished : trainer::kExitConfig;
}

}  // namespace holdfast::tools
