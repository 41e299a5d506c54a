// ckpt/convert/source_reader.cc: see source_reader.h.

#include "ckpt/convert/source_reader.h"

#include <algorithm>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/storage/blocking.h"

namespace holdfast::ckpt {
namespace {

constexpr uint16_t kSpace = 1;
// Files that stay open; ids below those of the session's space.
constexpr uint32_t kOpenMax = 48;

}  // namespace

UnitIndexes::Index UnitIndexes::Find(uint32_t file) {
  const std::lock_guard guard(lock_);
  entries_[file].used = ++uses_;
  return entries_[file].index;
}

void UnitIndexes::Put(uint32_t file, Index index) {
  const std::lock_guard guard(lock_);
  if (entries_[file].index) return;
  while (bytes_ > 0 && bytes_ + BytesOf(index) > bytes_max_) {
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      if (entry.index && (oldest == nullptr || entry.used < oldest->used)) {
        oldest = &entry;
      }
    }
    if (oldest == nullptr) break;
    bytes_ -= BytesOf(oldest->index);
    oldest->index.reset();
  }
  bytes_ += BytesOf(index);
  entries_[file] = {std::move(index), ++uses_};
}

SessionEnv SourceReader::EnvOf(Storage* storage, Clock* clock) {
  SessionEnv env;
  env.storage = storage;
  env.clock = clock;
  env.space = kSpace;
  env.ops_max = storage->queue_depth();
  return env;
}

SourceReader::SourceReader(std::unique_ptr<Storage> storage, Clock* clock,
                           std::string dir, const Manifest* manifest,
                           UnitIndexes* indexes,
                           const UnitReaderOptions& options)
    : storage_(std::move(storage)),
      io_(EnvOf(storage_.get(), clock)),
      dir_(std::move(dir)),
      manifest_(manifest),
      indexes_(indexes),
      options_(options),
      units_(&io_, dir_, manifest, options) {
  for (uint32_t id = kOpenMax; id > 0; --id) free_ids_.push_back(FileId{id});
}

std::string SourceReader::PathOf(uint32_t file) const {
  const std::string& name = manifest_->files[file].name;
  return dir_ == "." ? name : dir_ + "/" + name;
}

Task<bool> SourceReader::RunUnits(std::vector<FileWant> wants,
                                  UnitReader::Sink sink, absl::Status* result) {
  const absl::Status status =
      co_await units_.Read(std::move(wants), std::move(sink));
  *result = status;
  co_return status.ok();
}

absl::Status SourceReader::ReadByUnits(std::vector<FileWant> wants,
                                       UnitReader::Sink sink) {
  absl::Status result;
  Fiber fiber;
  fiber.Start(RunUnits(std::move(wants), std::move(sink), &result));
  while (true) {
    fiber.Poll();
    if (fiber.done() && io_.idle()) return result;
    Completion answers[64];
    const size_t count = storage_->Poll(answers);
    for (size_t i = 0; i < count; ++i) io_.OnCompletion(answers[i]);
    if (count == 0) storage_->WaitForCompletion(/*wait_ms=*/100);
  }
}

absl::StatusOr<UnitIndexes::Index> SourceReader::IndexOf(uint32_t file) {
  if (UnitIndexes::Index index = indexes_->Find(file)) return index;
  auto read = std::make_shared<std::vector<Unit>>();
  std::vector<FileWant> wants(1);
  wants[0].file = file;
  wants[0].pick = [&read](std::span<const Unit> units, uint64_t) {
    read->assign(units.begin(), units.end());
    return std::vector<UnitRead>();
  };
  HF_RETURN_IF_ERROR(ReadByUnits(
      std::move(wants), [](uint32_t, uint64_t, std::span<const std::byte>) {}));
  UnitIndexes::Index index = std::move(read);
  indexes_->Put(file, index);
  return index;
}

absl::StatusOr<FileId> SourceReader::OpenFile(uint32_t file) {
  const auto found = open_.find(file);
  if (found != open_.end()) {
    found->second.used = ++uses_;
    return found->second.id;
  }
  Blocking disk(*storage_);
  if (free_ids_.empty()) {
    auto oldest = open_.begin();
    for (auto at = open_.begin(); at != open_.end(); ++at) {
      if (at->second.used < oldest->second.used) oldest = at;
    }
    HF_RETURN_IF_ERROR(disk.Close(oldest->second.id));
    free_ids_.push_back(oldest->second.id);
    open_.erase(oldest);
  }
  const FileId id = free_ids_.back();
  HF_RETURN_IF_ERROR(disk.Open(PathOf(file), id).status());
  free_ids_.pop_back();
  open_[file] = {id, ++uses_};
  return id;
}

bool SourceReader::CheckAndDeliver(const Slot& slot, const Deliver& deliver) {
  const UnitRead& run = slot.read->run;
  const std::vector<Unit>& index = *slot.read->wanted->index;
  const auto bytes_of = [&](uint32_t i) {
    return slot.buffer.span().subspan(index[i].offset - run.offset,
                                      index[i].bytes);
  };
  for (uint32_t i = run.first_unit; i < run.first_unit + run.unit_count; ++i) {
    if (Crc32c(bytes_of(i)) != index[i].crc) return false;
  }
  for (uint32_t i = run.first_unit; i < run.first_unit + run.unit_count; ++i) {
    deliver(slot.read->wanted->file, i, bytes_of(i));
  }
  return true;
}

absl::Status SourceReader::ReadSlowly(const Planned& read,
                                      const Deliver& deliver) {
  const std::vector<Unit>& index = *read.wanted->index;
  std::vector<FileWant> wants(1);
  wants[0].file = read.wanted->file;
  wants[0].pick = PickRange(read.run.offset, read.run.offset + read.run.bytes);
  return ReadByUnits(std::move(wants), [&](uint32_t file, uint64_t offset,
                                           std::span<const std::byte> bytes) {
    auto unit = std::partition_point(
        index.begin(), index.end(),
        [offset](const Unit& u) { return u.offset < offset; });
    const uint64_t end = offset + bytes.size();
    for (; unit != index.end() && unit->offset < end; ++unit) {
      deliver(file, static_cast<uint32_t>(unit - index.begin()),
              bytes.subspan(unit->offset - offset, unit->bytes));
    }
  });
}

absl::Status SourceReader::ReadPlain(std::span<const Planned> reads,
                                     const Deliver& deliver) {
  const size_t slots = std::min<size_t>(reads.size(), options_.reads_in_flight);
  while (slots_.size() < slots) {
    slots_.push_back({AlignedBuffer(options_.read_bytes_max), nullptr});
  }
  std::vector<const Planned*> again;
  size_t next = 0;
  size_t unanswered = 0;
  const auto start = [&](size_t slot) -> absl::Status {
    slots_[slot].read = nullptr;
    while (next < reads.size()) {
      const Planned& read = reads[next];
      const auto found = open_.find(read.wanted->file);
      if (found == open_.end()) {
        // A blocking call wants the storage to itself.
        if (unanswered > 0) return absl::OkStatus();
        if (!OpenFile(read.wanted->file).ok()) {
          again.push_back(&reads[next++]);
          continue;
        }
        continue;
      }
      found->second.used = ++uses_;
      slots_[slot].read = &read;
      storage_->Read(found->second.id, read.run.offset,
                     slots_[slot].buffer.span().first(read.run.bytes),
                     OpTag{slot + 1});
      ++unanswered;
      ++next;
      return absl::OkStatus();
    }
    return absl::OkStatus();
  };
  while (true) {
    for (size_t slot = 0; slot < slots; ++slot) {
      if (slots_[slot].read == nullptr) HF_RETURN_IF_ERROR(start(slot));
    }
    if (unanswered == 0) break;
    Completion answers[16];
    const size_t count = storage_->Poll(answers);
    for (size_t i = 0; i < count; ++i) {
      const size_t slot = static_cast<size_t>(answers[i].tag) - 1;
      --unanswered;
      if (answers[i].status.ok()) bytes_read_ += slots_[slot].read->run.bytes;
      if (!answers[i].status.ok() || !CheckAndDeliver(slots_[slot], deliver)) {
        again.push_back(slots_[slot].read);
      }
      slots_[slot].read = nullptr;
    }
    if (count == 0) storage_->WaitForCompletion(/*wait_ms=*/100);
  }
  for (const Planned* read : again) {
    HF_RETURN_IF_ERROR(ReadSlowly(*read, deliver));
  }
  return absl::OkStatus();
}

absl::Status SourceReader::Read(std::span<const Wanted> wanted,
                                const Deliver& deliver) {
  std::vector<Planned> plain;
  std::vector<Planned> coded;
  for (const Wanted& want : wanted) {
    std::vector<UnitRead> runs;
    for (const uint32_t unit : want.units) {
      AddToReads(unit, (*want.index)[unit], options_.read_bytes_max, &runs);
    }
    auto& reads = manifest_->files[want.file].coded() ? coded : plain;
    for (const UnitRead& run : runs) reads.push_back({&want, run});
  }
  HF_RETURN_IF_ERROR(ReadPlain(plain, deliver));
  for (const Planned& read : coded) {
    HF_RETURN_IF_ERROR(ReadSlowly(read, deliver));
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
