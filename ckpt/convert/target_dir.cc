// ckpt/convert/target_dir.cc: see target_dir.h.

#include "ckpt/convert/target_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/while.h"
#include "ckpt/session/preflight.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::ckpt {
namespace {

constexpr FileId kFile{1};
// Beside the shard files: manifest, records, directories.
constexpr uint64_t kSpaceBeside = uint64_t{16} << 20;

absl::Status ExistsIsFine(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

// Can this be what round `number` of the plan has written? A record may have
// been made by anybody.
bool Fits(const RoundRecord& record, uint32_t number, const ConvertPlan& plan,
          size_t items, bool coded) {
  if (record.round != number || number >= plan.rounds.size() ||
      record.plan_hash != plan.hash || record.coded != coded) {
    return false;
  }
  const RoundPlan& round = plan.rounds[number];
  const size_t first = plan.windows[round.first_window].first;
  const size_t units = plan.windows[round.end_window - 1].end - first;
  if ((coded ? record.units.size() : record.crcs.size()) != units) return false;
  for (size_t i = 0; i < record.units.size(); ++i) {
    const UnitRef& ref = plan.order[first + i];
    const CodedUnit& unit = record.units[i];
    if (!IsPossible(unit) ||
        unit.bytes != plan.files[ref.file].units[ref.unit].bytes ||
        unit.offset < kShardBlockBytes || unit.offset % kShardBlockBytes != 0 ||
        // As if nothing had shrunk is as far as it can be.
        unit.offset > plan.files[ref.file].index_offset) {
      return false;
    }
  }
  return std::all_of(
      record.digests.begin(), record.digests.end(),
      [items](const auto& entry) { return entry.first < items; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TargetDir>> TargetDir::Open(
    const std::string& path, const StorageOptions& storage, Clock& clock) {
  HF_ASSIGN_OR_RETURN(const std::string root, PathOfLocation(path));
  std::error_code error;
  const bool is_new = std::filesystem::create_directory(root, error);
  if (error == std::errc::no_such_file_or_directory ||
      error == std::errc::not_a_directory || error == std::errc::file_exists) {
    // What the user has named, not what the disk has done.
    return absl::FailedPreconditionError(
        absl::StrFormat("making the directory %s: %s; name one whose parent is "
                        "a directory",
                        root, error.message()));
  }
  if (error) return ErrnoStatus(error.value(), "making the directory", root);
  // Two that write at once would spoil what the first of them commits: coded
  // units lie where their round has put them. Held until the descriptor is
  // closed, also by a kill. Some file systems (NFS) lock no directories; there
  // it is the user who must not start two.
  Fd lock(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 &&
      errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: another process is converting into it; nothing in it was changed. "
        "Let it finish, or end it",
        root));
  }
  StorageOptions options = storage;
  if (is_new) {
    const std::string parent =
        std::filesystem::absolute(root + "/..").lexically_normal();
    options.location = parent;
    HF_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> above,
                        OpenStorage(options));
    HF_RETURN_IF_ERROR(While(absl::StrFormat("making %s durable", root),
                             Blocking(*above).SyncDir(".")));
  }
  options.location = root;
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Storage> opened, OpenStorage(options));
  std::unique_ptr<TargetDir> dir(
      new TargetDir(root, std::move(options), std::move(opened), clock));
  dir->lock_ = std::move(lock);
  return dir;
}

absl::StatusOr<std::unique_ptr<TargetDir>> TargetDir::Join(
    const std::string& path, const StorageOptions& storage,
    const ConversionRecord& record, Clock& clock) {
  HF_ASSIGN_OR_RETURN(const std::string root, PathOfLocation(path));
  StorageOptions options = storage;
  options.location = root;
  for (int tries = 1;; ++tries) {
    absl::Status status;
    auto opened = OpenStorage(options);
    if (opened.ok()) {
      std::unique_ptr<TargetDir> dir(
          new TargetDir(root, options, *std::move(opened), clock));
      dir->Name(record);
      const auto there =
          Blocking(*dir->storage_).Get(kConversionRecordName, kRecordBytesMax);
      if (there.ok()) {
        const auto found = DecodeConversion(*there);
        if (found.ok() && *found == record) return dir;
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s: this rank sees another directory than rank 0 does", root));
      }
      status = there.status();
    } else {
      status = opened.status();
    }
    if (!absl::IsNotFound(status) || tries == kSeeTries) return status;
    clock.Sleep(kSeeWait);
  }
}

std::string TargetDir::PathOf(const std::string& name) const {
  return checkpoint_dir_ == "." ? name : checkpoint_dir_ + "/" + name;
}

std::string TargetDir::path() const {
  return checkpoint_dir_ == "." ? root_ : root_ + "/" + checkpoint_dir_;
}

absl::Status TargetDir::Refuse(const std::string& why) const {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: %s; nothing in it was changed. Name another directory, or remove "
      "this one",
      root_, why));
}

absl::Status TargetDir::UnlessItStays(const absl::Status& status) const {
  return absl::Status(
      status.code(),
      absl::StrFormat("%s; try again, and if it stays so, remove %s",
                      std::string(status.message()), root_));
}

void TargetDir::Name(const ConversionRecord& record) {
  is_run_ = record.form == "run";
  id_ = {record.step, 1, 1};
  checkpoint_dir_ = is_run_ ? AttemptDir(id_) : ".";
}

absl::StatusOr<TargetDir::State> TargetDir::Look(ConversionRecord* wanted) {
  Name(*wanted);
  Blocking disk(*storage_);
  HF_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, disk.List("."));
  if (entries.empty()) return State::kEmpty;

  const auto manifest = ReadManifest();
  if (manifest.ok()) {
    ConversionRecord made = *wanted;
    made.run_id = manifest->run_id;
    const auto attribute = manifest->attributes.find(kConversionAttribute);
    if (attribute == manifest->attributes.end()) {
      return Refuse(
          absl::StrFormat("it has a checkpoint, %s, that no "
                          "conversion made",
                          ToString(manifest->id)));
    }
    if (attribute->second != ConversionText(*wanted)) {
      return Refuse(absl::StrFormat(
          "it has the result of another conversion (%s); this one is %s",
          attribute->second, ConversionText(*wanted)));
    }
    wanted->run_id = manifest->run_id;
  } else if (absl::IsUnavailable(manifest.status())) {
    return UnlessItStays(manifest.status());
  } else if (!absl::IsNotFound(manifest.status())) {
    return Refuse(std::string(manifest.status().message()));
  }

  const auto record = disk.Get(kConversionRecordName, kRecordBytesMax);
  if (absl::IsNotFound(record.status())) {
    if (manifest.ok()) return State::kComplete;
    // Killed between making the directory and putting the record.
    if (entries.size() == 1 && entries[0].name == kConversionDir &&
        entries[0].is_directory) {
      HF_ASSIGN_OR_RETURN(const std::vector<DirEntry> inside,
                          disk.List(kConversionDir));
      if (inside.empty()) return State::kEmpty;
    }
    std::string names;
    for (size_t i = 0; i < entries.size() && i < 4; ++i) {
      absl::StrAppendFormat(&names, "%s%s", i == 0 ? "" : ", ",
                            entries[i].name);
    }
    return Refuse(absl::StrFormat(
        "it is neither empty nor the beginning of a conversion; it has %s%s",
        names, entries.size() > 4 ? ", ..." : ""));
  }
  if (absl::IsUnavailable(record.status())) {
    return UnlessItStays(record.status());
  }
  HF_RETURN_IF_ERROR(record.status());
  const auto there = DecodeConversion(*record);
  if (!there.ok()) {
    return Refuse(absl::StrFormat("%s is damaged: %s", kConversionRecordName,
                                  std::string(there.status().message())));
  }
  const std::string differs = ConversionDiffers(*there, *wanted);
  if (!differs.empty()) {
    return Refuse(absl::StrFormat(
        "it is the beginning of another conversion: %s", differs));
  }
  wanted->run_id = there->run_id;
  if (is_run_) {
    const auto owners = disk.List(kOwnersDir);
    if (owners.ok()) {
      for (const DirEntry& entry : *owners) {
        const auto parsed = ParseOwnerFile(entry.name);
        if (parsed && parsed->incarnation > id_.incarnation) {
          return Refuse(absl::StrFormat("a job has taken it as its run (%s/%s)",
                                        kOwnersDir, entry.name));
        }
      }
    } else if (!absl::IsNotFound(owners.status())) {
      return owners.status();
    }
  }
  return manifest.ok() ? State::kComplete : State::kBegun;
}

absl::Status TargetDir::CheckSpace(const ConvertPlan& plan) {
  Blocking disk(*storage_);
  uint64_t needed = kSpaceBeside;
  for (const TargetFile& file : plan.files) {
    const auto there = SizeOfFile(file.name);
    if (!there.ok() || *there < file.file_bytes) {
      needed += file.file_bytes - (there.ok() ? *there : 0);
    }
  }
  const auto free = disk.FreeSpace(".");
  if (absl::IsUnimplemented(free.status())) return absl::OkStatus();
  HF_RETURN_IF_ERROR(free.status());
  if (*free >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %.1f MB are needed and %.1f MB are free; nothing was written", root_,
      needed / 1e6, *free / 1e6));
}

absl::Status TargetDir::MakeRun(const ConversionRecord& record, int world) {
  Blocking disk(*storage_);
  HF_RETURN_IF_ERROR(
      ExistsIsFine(disk.PutIfAbsent(kRunIdName, EncodeRunId(record.run_id))));
  for (const char* dir : {kOwnersDir, kCheckpointsDir}) {
    HF_RETURN_IF_ERROR(ExistsIsFine(disk.MakeDir(dir)));
  }
  HF_RETURN_IF_ERROR(ExistsIsFine(disk.MakeDir(checkpoint_dir_)));
  HF_RETURN_IF_ERROR(disk.SyncDir("."));
  HF_RETURN_IF_ERROR(disk.SyncDir(kCheckpointsDir));
  OwnerClaim claim;
  claim.run_id = record.run_id;
  claim.incarnation = id_.incarnation;
  claim.host = HostName();
  claim.pid = ::getpid();
  claim.mark = MarkOfThisProcess();
  claim.time_unix_ms = absl::ToUnixMillis(clock_.WallTime());
  claim.world = static_cast<uint32_t>(world);
  HF_RETURN_IF_ERROR(ExistsIsFine(
      disk.PutIfAbsent(ClaimName(id_.incarnation), EncodeClaim(claim))));
  OwnerSeal seal;
  seal.run_id = record.run_id;
  seal.incarnation = id_.incarnation;
  return ExistsIsFine(
      disk.PutIfAbsent(SealName(id_.incarnation), EncodeSeal(seal)));
}

absl::Status TargetDir::MakeFiles(const ConvertPlan& plan, bool reserve,
                                  const std::atomic<bool>& stop) {
  Blocking disk(*storage_);
  std::set<std::string> dirs = {checkpoint_dir_};
  for (const std::string& dir : plan.dirs) {
    HF_RETURN_IF_ERROR(ExistsIsFine(disk.MakeDir(PathOf(dir))));
    dirs.insert(PathOf(dir));
  }
  for (const TargetFile& file : plan.files) {
    if (stop) return absl::CancelledError("stopped");
    const std::string name = PathOf(file.name);
    absl::Status made = disk.Create(name, kFile, reserve ? file.file_bytes : 0);
    if (absl::IsAlreadyExists(made)) continue;
    HF_RETURN_IF_ERROR(made);
    HF_RETURN_IF_ERROR(disk.Close(kFile));
  }
  for (const std::string& dir : dirs) {
    HF_RETURN_IF_ERROR(disk.SyncDir(dir));
  }
  return absl::OkStatus();
}

absl::Status TargetDir::Begin(const ConversionRecord& record,
                              const ConvertPlan& plan, bool reserve,
                              const std::atomic<bool>& stop) {
  Name(record);
  HF_RETURN_IF_ERROR(CheckSpace(plan));
  Blocking disk(*storage_);
  HF_RETURN_IF_ERROR(ExistsIsFine(disk.MakeDir(kConversionDir)));
  HF_RETURN_IF_ERROR(disk.SyncDir("."));
  const absl::Status put =
      disk.PutIfAbsent(kConversionRecordName, EncodeConversion(record));
  if (absl::IsAlreadyExists(put)) {
    // Put by the try before, or since Look by somebody who is at work.
    HF_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                        disk.Get(kConversionRecordName, kRecordBytesMax));
    const auto there = DecodeConversion(bytes);
    if (!there.ok() || *there != record) {
      return Refuse("another conversion has begun in it at this moment");
    }
  } else {
    HF_RETURN_IF_ERROR(put);
  }
  if (is_run_) {
    HF_RETURN_IF_ERROR(MakeRun(record, static_cast<int>(plan.files.size())));
  }
  return While(absl::StrFormat("making the files in %s", path()),
               MakeFiles(plan, reserve, stop));
}

absl::StatusOr<std::vector<RoundRecord>> TargetDir::Rounds(
    const ConvertPlan& plan, size_t items, bool coded) {
  Blocking disk(*storage_);
  HF_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries,
                      disk.List(kConversionDir));
  std::vector<uint32_t> numbers;
  for (const DirEntry& entry : entries) {
    if (const auto round = ParseRoundRecord(entry.name)) {
      numbers.push_back(*round);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  std::vector<RoundRecord> records;
  for (const uint32_t number : numbers) {
    const std::string name = RoundRecordName(number);
    const auto bytes = disk.Get(name, kManifestBytesMax);
    auto record = bytes.ok() ? DecodeRound(*bytes)
                             : absl::StatusOr<RoundRecord>(bytes.status());
    if (record.ok() && !Fits(*record, number, plan, items, coded)) {
      record = absl::DataLossError("it says what cannot be of this round");
    }
    // A bad sector is damage like any other.
    if (!record.ok() && !absl::IsUnavailable(record.status()) &&
        !absl::IsDataLoss(record.status())) {
      return record.status();
    }
    if (record.ok() && (!coded || number == records.size())) {
      records.push_back(*std::move(record));
      continue;
    }
    if (!record.ok()) {
      HF_LOG_WARNING("%s/%s: %s; its round is written again", root_, name,
                     std::string(record.status().message()));
    }
    HF_RETURN_IF_ERROR(DropRound(number));
  }
  return records;
}

absl::Status TargetDir::PutRound(const RoundRecord& record) {
  return Blocking(*storage_).PutIfAbsent(RoundRecordName(record.round),
                                         EncodeRound(record));
}

absl::Status TargetDir::DropRound(uint32_t round) {
  Blocking disk(*storage_);
  HF_RETURN_IF_ERROR(disk.Remove(RoundRecordName(round)));
  return disk.SyncDir(kConversionDir);
}

absl::Status TargetDir::Commit(const Manifest& manifest) {
  Blocking disk(*storage_);
  if (is_run_) {
    HF_RETURN_IF_ERROR(ExistsIsFine(
        disk.PutIfAbsent(kCheckpointsRunIdName, EncodeRunId(manifest.run_id))));
  }
  return While(
      absl::StrFormat("committing %s", path()),
      disk.PutIfAbsent(PathOf(kManifestName), EncodeManifest(manifest)));
}

absl::Status TargetDir::RemoveRecords() {
  Blocking disk(*storage_);
  const auto entries = disk.List(kConversionDir);
  if (absl::IsNotFound(entries.status())) return absl::OkStatus();
  HF_RETURN_IF_ERROR(entries.status());
  bool is_ours = true;
  for (const DirEntry& entry : *entries) {
    const std::string name =
        absl::StrFormat("%s/%s", kConversionDir, entry.name);
    if (name == kConversionRecordName || ParseRoundRecord(entry.name)) {
      HF_RETURN_IF_ERROR(disk.Remove(name));
    } else {
      is_ours = false;
    }
  }
  if (!is_ours) return disk.SyncDir(kConversionDir);
  HF_RETURN_IF_ERROR(disk.Remove(kConversionDir));
  return disk.SyncDir(".");
}

absl::StatusOr<Manifest> TargetDir::ReadManifest() {
  HF_ASSIGN_OR_RETURN(
      const std::vector<std::byte> bytes,
      Blocking(*storage_).Get(PathOf(kManifestName), kManifestBytesMax));
  auto manifest = DecodeManifest(bytes);
  if (!manifest.ok()) {
    return While(absl::StrFormat("%s/%s", path(), kManifestName),
                 manifest.status());
  }
  return manifest;
}

absl::StatusOr<uint64_t> TargetDir::SizeOfFile(const std::string& name) {
  Blocking disk(*storage_);
  HF_ASSIGN_OR_RETURN(const uint64_t size, disk.Open(PathOf(name), kFile));
  HF_RETURN_IF_ERROR(disk.Close(kFile));
  return size;
}

}  // namespace holdfast::ckpt
