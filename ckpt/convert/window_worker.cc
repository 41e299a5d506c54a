// ckpt/convert/window_worker.cc: see window_worker.h.

#include "ckpt/convert/window_worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/while.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/preflight.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/blocking.h"

namespace holdfast::ckpt {
namespace {

// Files that a worker keeps open for writing; its storage has room for some
// more.
constexpr uint32_t kOpenMax = 48;
constexpr FileId kReadFile{1000};

// The width of most bytes of a unit.
int PlanesOf(const std::vector<ItemSpec>& items,
             std::span<const DigestPiece> pieces) {
  std::array<uint64_t, 9> bytes = {};  // by width
  for (const DigestPiece& piece : pieces) {
    const int width = SizeOf(items[piece.item].dtype);
    bytes[width] += static_cast<uint64_t>(piece.count) * width;
  }
  return static_cast<int>(std::max_element(bytes.begin() + 1, bytes.end()) -
                          bytes.begin());
}

}  // namespace

absl::Status ConversionStopped() {
  return absl::CancelledError(
      "stopped; the same command goes on from what is finished");
}

WindowWorker::WindowWorker(ConvertShared* shared,
                           std::unique_ptr<Storage> storage,
                           uint64_t window_bytes)
    : shared_(shared), storage_(std::move(storage)), window_(window_bytes) {
  if (shared->coded()) {
    coded_ = AlignedBuffer(window_bytes);
    encoder_.emplace(shared->codec_level, kUnitBytesMax);
  }
  for (uint32_t id = kOpenMax; id > 0; --id) free_ids_.push_back(id);
  std::array<std::span<std::byte>, 2> buffers = {window_.span(), coded_.span()};
  storage_->RegisterBuffers(std::span(buffers).first(shared->coded() ? 2 : 1));
}

void WindowWorker::Take(const Completion& answer) {
  --unanswered_;
  if (!answer.status.ok() && failed_.ok()) failed_ = answer.status;
}

absl::Status WindowWorker::Drain(size_t left) {
  Completion answers[64];
  while (true) {
    const size_t count = storage_->Poll(answers);
    for (size_t i = 0; i < count; ++i) Take(answers[i]);
    if (unanswered_ <= left) break;
    if (count == 0) storage_->WaitForCompletion(/*wait_ms=*/100);
  }
  return failed_;
}

absl::StatusOr<FileId> WindowWorker::OpenToWrite(uint32_t file) {
  const auto found = open_.find(file);
  if (found != open_.end()) {
    found->second.used = ++uses_;
    return found->second.id;
  }
  // What is unanswered may be of a file that is about to be closed, and a
  // blocking call wants the storage to itself.
  HF_RETURN_IF_ERROR(Drain(0));
  if (free_ids_.empty()) HF_RETURN_IF_ERROR(CloseOne());
  const FileId id{free_ids_.back()};
  absl::Status opened;
  for (int tries = 1;; ++tries) {
    opened =
        Blocking(*storage_)
            .OpenForWrite(shared_->PathOf(shared_->plan->files[file].name), id)
            .status();
    // Made by rank 0, perhaps on another machine, whose names come late.
    if (!absl::IsNotFound(opened) || tries == kSeeTries) break;
    shared_->clock->Sleep(kSeeWait);
  }
  HF_RETURN_IF_ERROR(opened);
  free_ids_.pop_back();
  open_[file] = {id, false, ++uses_};
  return id;
}

absl::Status WindowWorker::CloseOne() {
  auto oldest = open_.begin();
  for (auto at = open_.begin(); at != open_.end(); ++at) {
    if (at->second.used < oldest->second.used) oldest = at;
  }
  return SyncAndClose({oldest->first}, /*close=*/true);
}

// The syncs of all files are under way together.
absl::Status WindowWorker::SyncAndClose(std::vector<uint32_t> files,
                                        bool close) {
  HF_RETURN_IF_ERROR(Drain(0));
  for (const uint32_t file : files) {
    OpenFile& open = open_.at(file);
    if (!std::exchange(open.dirty, false)) continue;
    storage_->Sync(open.id, OpTag{++last_tag_});
    ++unanswered_;
    HF_RETURN_IF_ERROR(Drain(storage_->queue_depth() - 1));
  }
  HF_RETURN_IF_ERROR(Drain(0));
  if (!close) return absl::OkStatus();
  for (const uint32_t file : files) {
    const FileId id = open_.at(file).id;
    HF_RETURN_IF_ERROR(Blocking(*storage_).Close(id));
    free_ids_.push_back(static_cast<uint32_t>(id));
    open_.erase(file);
  }
  return absl::OkStatus();
}

absl::Status WindowWorker::SyncAll() {
  std::vector<uint32_t> files;
  for (const auto& [file, open] : open_) files.push_back(file);
  return SyncAndClose(std::move(files), /*close=*/false);
}

// The window's units follow each other in memory.
absl::Status WindowWorker::Fill(const WindowPlan& window) {
  const ConvertPlan& plan = *shared_->plan;
  std::vector<WantedRun> wants;
  std::span<std::byte> rest = window_.span();
  for (size_t i = window.first; i < window.end; ++i) {
    const UnitRef& ref = plan.order[i];
    const TargetUnit& unit = plan.files[ref.file].units[ref.unit];
    const std::span<std::byte> memory = rest.first(unit.bytes);
    rest = rest.subspan(unit.bytes);
    uint32_t filled = 0;
    for (const DigestPiece& piece :
         PiecesOf(*shared_->items, plan.files[ref.file], unit)) {
      const auto bytes = static_cast<uint32_t>(
          BytesOf((*shared_->items)[piece.item], piece.count));
      std::memset(memory.data() + filled, 0, piece.unit_offset - filled);
      wants.push_back({piece.item, piece.part, piece.first, piece.count,
                       memory.subspan(piece.unit_offset, bytes)});
      filled = piece.unit_offset + bytes;
    }
    std::memset(memory.data() + filled, 0, unit.bytes - filled);
  }
  shared_->fills->acquire();
  const absl::Status filled = shared_->source->Fill(wants);
  shared_->fills->release();
  return filled;
}

absl::Status WindowWorker::WriteUnit(size_t place, std::span<std::byte> plain,
                                     std::span<std::byte> out) {
  const ConvertPlan& plan = *shared_->plan;
  const UnitRef& ref = plan.order[place];
  const TargetUnit& unit = plan.files[ref.file].units[ref.unit];
  std::span<const std::byte> bytes = plain;
  uint64_t offset = unit.offset;
  if (shared_->coded()) {
    CodedUnit coded = CodeUnit(
        *encoder_, plain,
        PlanesOf(*shared_->items,
                 PiecesOf(*shared_->items, plan.files[ref.file], unit)),
        out);
    offset = shared_->file_ends[ref.file].fetch_add(coded.padded_bytes());
    coded.offset = offset;
    shared_->units[place] = coded;
    bytes = out.first(coded.padded_bytes());
  } else {
    shared_->crcs[place] = Crc32c(plain);
  }
  HF_ASSIGN_OR_RETURN(const FileId file, OpenToWrite(ref.file));
  HF_RETURN_IF_ERROR(Drain(storage_->queue_depth() - 1));
  open_.at(ref.file).dirty = true;
  storage_->Write(file, offset, bytes, OpTag{++last_tag_});
  ++unanswered_;
  return absl::OkStatus();
}

absl::Status WindowWorker::Write(const WindowPlan& window,
                                 std::map<ItemIndex, Digest128>* digests) {
  const ConvertPlan& plan = *shared_->plan;
  if (stopped()) return ConversionStopped();
  HF_RETURN_IF_ERROR(Fill(window));
  uint64_t at = 0;
  absl::Status status;
  for (size_t i = window.first; i < window.end && status.ok(); ++i) {
    const UnitRef& ref = plan.order[i];
    const TargetFile& file = plan.files[ref.file];
    const TargetUnit& unit = file.units[ref.unit];
    const auto memory = window_.span().subspan(at, unit.bytes);
    for (const DigestPiece& piece : PiecesOf(*shared_->items, file, unit)) {
      const ItemSpec& item = (*shared_->items)[piece.item];
      (*digests)[piece.item] += DigestRun(
          item, piece.part, piece.first, piece.count,
          memory.subspan(piece.unit_offset, BytesOf(item, piece.count)));
    }
    status = WriteUnit(i, memory,
                       shared_->coded() ? coded_.span().subspan(at, unit.bytes)
                                        : std::span<std::byte>());
    at += unit.bytes;
  }
  const absl::Status drained = Drain(0);
  if (status.ok()) status = drained;
  HF_RETURN_IF_ERROR(While("writing the new files", status));
  shared_->bytes_done += window.bytes;
  return absl::OkStatus();
}

// A bad sector is damage like any other, and writing may mend it; a storage
// that stumbles gets a second chance.
template <typename Call>
absl::StatusOr<bool> CanBeRead(Call call) {
  absl::Status status = call();
  if (absl::IsUnavailable(status)) status = call();
  if (status.ok()) return true;
  if (!absl::IsUnavailable(status)) return status;
  HF_LOG_WARNING("%s; what was written there is written again",
                 std::string(status.message()));
  return false;
}

absl::StatusOr<bool> WindowWorker::Verify(const WindowPlan& window) {
  const ConvertPlan& plan = *shared_->plan;
  if (stopped()) return ConversionStopped();
  HF_RETURN_IF_ERROR(Drain(0));
  Blocking disk(*storage_);
  std::optional<uint32_t> open;
  uint64_t size = 0;
  bool is_good = true;
  const auto close = [&]() -> absl::Status {
    if (!open.has_value()) return absl::OkStatus();
    open.reset();
    return disk.Close(kReadFile);
  };
  for (size_t i = window.first; i < window.end && is_good; ++i) {
    const UnitRef& ref = plan.order[i];
    const TargetUnit& unit = plan.files[ref.file].units[ref.unit];
    if (open != ref.file) {
      HF_RETURN_IF_ERROR(close());
      const std::string name = shared_->PathOf(plan.files[ref.file].name);
      bool is_missing = false;
      HF_ASSIGN_OR_RETURN(is_good, CanBeRead([&] {
                            const auto opened = disk.Open(name, kReadFile);
                            is_missing = absl::IsNotFound(opened.status());
                            if (opened.ok()) size = *opened;
                            return is_missing ? absl::OkStatus()
                                              : opened.status();
                          }));
      if (is_missing || !is_good) return false;
      open = ref.file;
    }
    uint64_t offset = unit.offset;
    uint64_t bytes = unit.bytes;
    uint32_t crc = 0;
    if (shared_->coded()) {
      const CodedUnit& coded = shared_->units[i];
      offset = coded.offset;
      bytes = coded.padded_bytes();
      crc = coded.crc;
    } else {
      crc = shared_->crcs[i];
    }
    // Records are checked against the plan (target_dir.h): it fits.
    HF_CHECK(bytes <= window_.size(), "a unit of %d bytes", bytes);
    const auto memory = window_.span().first(bytes);
    if (offset > size || bytes > size - offset) {
      is_good = false;
      break;
    }
    HF_ASSIGN_OR_RETURN(is_good, CanBeRead([&] {
                          return disk.Read(kReadFile, offset, memory).status();
                        }));
    if (is_good) is_good = Crc32c(memory) == crc;
  }
  HF_RETURN_IF_ERROR(close());
  if (is_good) shared_->bytes_done += window.bytes;
  return is_good;
}

absl::StatusOr<FinishedFile> WindowWorker::Finish(
    uint32_t file, const ShardIdentity& identity,
    std::span<const size_t> places) {
  if (stopped()) return ConversionStopped();
  const TargetFile& target = shared_->plan->files[file];
  FinishedFile finished;
  std::vector<std::byte> index;
  uint64_t index_offset = target.index_offset;
  if (shared_->coded() && !places.empty()) {
    std::vector<CodedUnit> units;
    for (const size_t place : places) units.push_back(shared_->units[place]);
    // What was taken over from an earlier try may be anybody's.
    HF_RETURN_IF_ERROR(
        While(absl::StrFormat("finishing %s (was %s changed by something else? "
                              "Remove the directory and start again)",
                              shared_->PathOf(target.name), kConversionDir),
              CheckCodedUnits(units)));
    index = EncodeCodedIndex(units);
    index_offset = shared_->file_ends[file].load();
    finished.plain_bytes = target.index_offset - kShardBlockBytes;
  } else {
    std::vector<Unit> units;
    for (size_t i = 0; i < places.size(); ++i) {
      units.push_back({target.units[i].offset, target.units[i].bytes,
                       shared_->crcs[places[i]]});
    }
    index = EncodeShardIndex(units);
  }
  finished.crc_index = Crc32c(index);
  finished.bytes = index_offset + index.size() + kShardBlockBytes;
  const auto unit_count = static_cast<uint32_t>(places.size());

  HF_ASSIGN_OR_RETURN(const FileId id, OpenToWrite(file));
  Blocking disk(*storage_);
  AlignedBuffer block(std::max<size_t>(index.size(), kShardBlockBytes));
  const auto put = [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(block.data(), bytes.data(), bytes.size());
    return disk.Write(id, offset, block.span().first(bytes.size()));
  };
  HF_RETURN_IF_ERROR(put(0, EncodeShardHeader(identity)));
  if (!index.empty()) HF_RETURN_IF_ERROR(put(index_offset, index));
  HF_RETURN_IF_ERROR(disk.Sync(id));
  HF_RETURN_IF_ERROR(
      put(index_offset + index.size(),
          EncodeShardFooter(identity, index_offset, unit_count,
                            finished.crc_index, finished.plain_bytes)));
  HF_RETURN_IF_ERROR(disk.Sync(id));
  open_.at(file).dirty = false;
  HF_RETURN_IF_ERROR(SyncAndClose({file}, /*close=*/true));
  HF_ASSIGN_OR_RETURN(const uint64_t size,
                      disk.Open(shared_->PathOf(target.name), kReadFile));
  HF_RETURN_IF_ERROR(disk.Close(kReadFile));
  if (size != finished.bytes) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has %d bytes where %d were written: something else writes there, "
        "or an earlier try used another codec; remove the directory and start "
        "again",
        shared_->PathOf(target.name), size, finished.bytes));
  }
  return finished;
}

}  // namespace holdfast::ckpt
