// ckpt/session/unit_reader.cc: open, check the frame, read units, check them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/unit_reader_state.h"

namespace holdfast::ckpt {
namespace {

bool IsDamage(const absl::Status& status) {
  // The contents or the kind of a file are wrong; trying again cannot help.
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ||
         absl::IsOutOfRange(status) || absl::IsDataLoss(status);
}

// The parts of [first, end) of `items` in words, for a person.
std::string DescribeItems(const Manifest& manifest, uint32_t file,
                          uint64_t first, uint64_t end) {
  std::string text;
  int more = 0;
  for (const Chunk& chunk : manifest.files[file].chunks) {
    const uint64_t from = std::max(first, chunk.offset);
    const uint64_t to = std::min(end, chunk.offset + chunk.bytes_stored);
    if (from >= to) continue;
    if (!text.empty()) {
      ++more;
      continue;
    }
    const ItemSpec& item = manifest.items[chunk.item];
    const uint64_t size = SizeOf(item.dtype);
    const int64_t element = chunk.first + (from - chunk.offset) / size;
    const int64_t last = chunk.first + (to - chunk.offset - 1) / size;
    text = absl::StrFormat("%s of '%s'", item.kind, item.name);
    if (chunk.part.dimensions > 0) {
      const int64_t row = std::max<int64_t>(
          1, chunk.part.elements() / std::max<int64_t>(1, chunk.part.count[0]));
      absl::StrAppendFormat(&text, ", rows %d-%d",
                            chunk.part.first[0] + element / row,
                            chunk.part.first[0] + last / row);
    }
  }
  if (more > 0) absl::StrAppendFormat(&text, " and %d more", more);
  return text;
}

std::string UnreadableText(const UnitReaderOptions& options,
                           const absl::Status& status) {
  return absl::StrFormat("cannot be read, %d times: %s", options.retry.tries,
                         std::string(status.message()));
}

}  // namespace

std::string ToString(const UnitDamage& damage) {
  return absl::StrFormat(
      "%s, offset %d%s: %s", damage.file_name, damage.offset,
      damage.item.empty() ? "" : absl::StrFormat(" (%s)", damage.item),
      damage.what);
}

absl::Status UnitReader::State::NoteDamage(UnitDamage entry) {
  if (damage.size() < options.damage_max) damage.push_back(std::move(entry));
  if (options.read_past_damage && damage.size() < options.damage_max) {
    return absl::OkStatus();
  }
  return absl::DataLossError(ToString(damage.front()));
}

absl::Status UnitReader::State::Damaged(uint32_t file, uint64_t offset,
                                        std::string what) {
  UnitDamage entry;
  entry.file = file;
  entry.file_name = manifest->files[file].name;
  entry.offset = offset;
  entry.what = std::move(what);
  return NoteDamage(std::move(entry));
}

absl::Status UnitReader::State::DamagedUnit(uint32_t file, size_t unit,
                                            uint64_t offset, std::string what) {
  const uint64_t begin = units[unit].offset;
  const uint64_t end = begin + units[unit].bytes;
  return NoteDamage({file, manifest->files[file].name, offset, begin,
                     end - begin, std::move(what),
                     DescribeItems(*manifest, file, begin, end)});
}

absl::Status UnitReader::State::Unreadable(uint32_t file, uint64_t offset,
                                           const absl::Status& status) {
  return Damaged(file, offset, UnreadableText(options, status));
}

absl::Status UnitReader::State::UnreadableRun(uint32_t file,
                                              const UnitRead& run,
                                              const absl::Status& status) {
  // In the plain image, where a coded file may have other neighbours: the
  // range that has all of them.
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (uint32_t i = run.first_unit; i < run.first_unit + run.unit_count; ++i) {
    const Unit& unit = units[coded.empty() ? i : by_place[i]];
    begin = std::min(begin, unit.offset);
    end = std::max(end, unit.offset + unit.bytes);
  }
  return NoteDamage({file, manifest->files[file].name, run.offset, begin,
                     end - begin, UnreadableText(options, status),
                     DescribeItems(*manifest, file, begin, end)});
}

Task<absl::Status> UnitReader::State::Repeat(std::function<Io::Ref()> call,
                                             uint64_t* bytes) {
  absl::Duration wait = options.retry.first_wait;
  for (int tries = 1;; ++tries) {
    const Io::Ref op = call();
    co_await UntilDone(op);
    if (bytes != nullptr) *bytes = op->bytes;
    if (!absl::IsUnavailable(op->status) || tries >= options.retry.tries ||
        cancelled) {
      co_return op->status;
    }
    const absl::Duration at = io->clock().Monotonic() + wait;
    co_await UntilTime(&io->clock(), at);
    wait *= 2;
  }
}

void UnitReader::State::Deliver(uint32_t file, const Slot& slot, size_t first,
                                size_t end, const Sink& sink) {
  if (first == end) return;
  const uint64_t from = units[first].offset;
  const uint64_t to = units[end - 1].offset + units[end - 1].bytes;
  sink(file, from, slot.memory.subspan(from - slot.run->offset, to - from));
}

void UnitReader::State::CheckRun(uint32_t file, const Slot& slot,
                                 const Sink& sink) {
  const size_t units_end = slot.run->first_unit + slot.run->unit_count;
  size_t good = slot.run->first_unit;  // whole from here on
  for (size_t i = good; i < units_end; ++i) {
    const Unit& unit = units[i];
    const uint32_t crc =
        Crc32c(slot.memory.subspan(unit.offset - slot.run->offset, unit.bytes));
    if (crc == unit.crc) continue;
    Deliver(file, slot, good, i, sink);
    good = i + 1;
    DamagedUnit(file, i, unit.offset,
                absl::StrFormat("crc32c is %08x, the index records %08x", crc,
                                unit.crc))
        .IgnoreError();  // looked at through stopped()
    if (stopped()) return;
  }
  Deliver(file, slot, good, units_end, sink);
}

// Takes what a slot's read has brought. The slot is free afterwards, or waits.
void UnitReader::State::Finish(uint32_t file, Slot& slot, const Sink& sink,
                               absl::Status* failed) {
  const absl::Status status = slot.op->status;
  slot.op.reset();
  if (absl::IsUnavailable(status) && slot.tries < options.retry.tries) {
    slot.retry_at = io->clock().Monotonic() +
                    options.retry.first_wait * (1 << (slot.tries - 1));
    return;
  }
  if (status.ok()) {
    bytes_read += slot.run->bytes;
    bytes_done += slot.run->bytes;
    if (slot.buffer.size() == 0) bytes_placed += slot.run->bytes;
    if (failed->ok() && !stopped()) {
      if (coded.empty()) {
        CheckRun(file, slot, sink);
      } else {
        CheckCodedRun(file, slot, sink);
      }
    }
  } else if (absl::IsUnavailable(status)) {
    // The file could be opened and its frame be read: it is this place.
    UnreadableRun(file, *slot.run, status)
        .IgnoreError();  // looked at through stopped()
  } else if (failed->ok()) {
    *failed = status;
  }
  slot.run.reset();
  if (lend != nullptr) slot.lent = lend();
}

// Units that go straight into place become reads of their own; what lies
// between them stays together.
void UnitReader::State::PlanReads(const std::vector<UnitRead>& runs,
                                  const FileWant::Place& place) {
  reads.clear();
  reads_begun = 0;
  for (const UnitRead& run : runs) {
    bool joins = false;  // the read before is of this run, and buffered
    for (uint32_t i = run.first_unit; i < run.first_unit + run.unit_count;
         ++i) {
      const Unit& unit = units[i];
      std::span<std::byte> memory;
      if (place && unit.bytes >= options.placed_bytes_min &&
          options.placed_in_flight > 0) {
        memory = place(unit.offset, unit.bytes);
      }
      if (joins && memory.empty()) {
        reads.back().run.bytes += unit.bytes;
        ++reads.back().run.unit_count;
      } else {
        reads.push_back({{unit.offset, unit.bytes, i, 1}, memory});
        joins = memory.empty();
      }
    }
  }
}

bool UnitReader::State::TakeRead(Slot& slot) {
  if (reads_begun == reads.size()) return false;
  const PlannedRead& read = reads[reads_begun];
  const bool buffered = slot.buffer.size() > 0;
  if (buffered != read.memory.empty()) return false;
  ++reads_begun;
  slot.run = read.run;
  slot.memory = buffered ? slot.buffer.first(read.run.bytes) : read.memory;
  slot.tries = 0;
  slot.retry_at = absl::ZeroDuration();
  return true;
}

Task<absl::Status> UnitReader::State::ReadRuns(uint32_t file,
                                               const Sink& sink) {
  // Slots of both kinds, as many as these reads can use.
  for (const bool buffered : {true, false}) {
    const size_t most = std::count_if(reads.begin(), reads.end(),
                                      [buffered](const PlannedRead& read) {
                                        return read.memory.empty() == buffered;
                                      });
    size_t have =
        std::count_if(slots.begin(), slots.end(), [buffered](const Slot& slot) {
          return (slot.buffer.size() > 0) == buffered;
        });
    for (const size_t want =
             std::min<size_t>(most, buffered ? options.reads_in_flight
                                             : options.placed_in_flight);
         have < want; ++have) {
      slots.push_back({});
      if (!buffered) continue;
      Slot& slot = slots.back();
      if (options.memory.empty()) {
        slot.owned = AlignedBuffer(options.read_bytes_max);
        slot.buffer = slot.owned.span();
      } else {
        slot.buffer = options.memory.subspan(have * options.read_bytes_max,
                                             options.read_bytes_max);
      }
    }
  }
  absl::Status failed;
  const auto go_on = [&] { return failed.ok() && !stopped(); };
  // A slot that waits to try again, and whose time has come.
  const auto is_due = [&](const Slot& slot) {
    return !go_on() || io->clock().Monotonic() >= slot.retry_at;
  };
  // A slot whose read has answered, and may be taken up.
  const auto is_ready = [&](const Slot& slot) {
    return slot.op->done && (gate == nullptr || !go_on() || gate());
  };
  while (true) {
    size_t busy = 0;
    for (Slot& slot : slots) {
      if (slot.op && is_ready(slot)) Finish(file, slot, sink, &failed);
      if (slot.run && !slot.op && !go_on()) slot.run.reset();
      if (slot.lent && lent_passed(*slot.lent)) slot.lent.reset();
      if (!slot.run && !slot.lent && go_on()) TakeRead(slot);
      if (slot.run && !slot.op && is_due(slot)) {
        ++slot.tries;
        slot.op = io->Read(file_id, slot.run->offset, slot.memory);
      }
      busy += slot.run.has_value() || slot.lent.has_value();
    }
    if (busy == 0) break;
    Until any([&] {
      for (const Slot& slot : slots) {
        if (slot.run && (slot.op ? is_ready(slot) : is_due(slot))) return true;
        if (slot.lent && lent_passed(*slot.lent)) return true;
      }
      return false;
    });
    co_await any;
  }
  co_return failed;
}

Task<absl::Status> UnitReader::State::ReadFile(const FileWant& want,
                                               const Sink& sink) {
  const uint32_t file = want.file;
  const ShardFile& expected = manifest->files[file];
  const std::string path = PathOf(file);
  uint64_t size = 0;
  std::function<Io::Ref()> call = [this, &path] {
    return io->Open(path, file_id);
  };
  const absl::Status opened = co_await Repeat(std::move(call), &size);
  if (!opened.ok()) {
    if (!IsDamage(opened)) co_return opened;
    co_return Damaged(file, 0, std::string(opened.message()));
  }
  absl::Status status;
  const size_t damage_before = damage.size();
  if (size != expected.bytes || size < 2 * kShardBlockBytes) {
    status = Damaged(file, 0,
                     absl::StrFormat("has %d bytes, the manifest records %d",
                                     size, expected.bytes));
  } else {
    BeginIndex(file);
    status = co_await ReadFrame(file);
    if (index_read != nullptr) co_await UntilDone(index_read);
    if (status.ok() && damage.size() == damage_before) {
      status = co_await ReadIndex(file);
    }
    if (status.ok() && damage.size() == damage_before && want.pick) {
      const std::vector<UnitRead> runs =
          want.pick(units, options.read_bytes_max);
      if (coded.empty()) {
        PlanReads(runs, want.place);
      } else {
        PlanCodedReads(runs, want.place);
      }
      for (const PlannedRead& read : reads) bytes_total += read.run.bytes;
      status = co_await ReadRuns(file, sink);
    }
  }
  index_read.reset();
  const Io::Ref closed = io->Close(file_id);
  co_await UntilDone(closed);
  if (!status.ok() && IsDamage(status) && !absl::IsDataLoss(status)) {
    // A read that the storage refused: past the end of what is there.
    status = Damaged(file, 0, std::string(status.message()));
  }
  if (status.ok() && cancelled) status = absl::AbortedError("cancelled");
  if (status.ok() && stopped()) {
    status = absl::DataLossError(ToString(damage.front()));
  }
  co_return status;
}

UnitReader::UnitReader(Io* io, std::string dir, const Manifest* manifest,
                       const UnitReaderOptions& options)
    : state_(std::make_unique<State>(io, std::move(dir), manifest, options)) {}

UnitReader::~UnitReader() {
  if (!state_->io->idle()) KeepForEver(std::move(state_));
}

Task<absl::Status> UnitReader::Read(std::vector<FileWant> wants, Sink sink) {
  State& state = *state_;
  for (const FileWant& want : wants) {
    const absl::Status status = co_await state.ReadFile(want, sink);
    if (status.ok()) continue;
    if (absl::IsDataLoss(status)) co_return status;
    co_return absl::Status(
        status.code(),
        absl::StrFormat("reading %s: %s", state.PathOf(want.file),
                        std::string(status.message())));
  }
  if (!state.damage.empty()) {
    co_return absl::DataLossError(ToString(state.damage.front()));
  }
  co_return absl::OkStatus();
}

void UnitReader::SetGate(std::function<bool()> gate) {
  state_->gate = std::move(gate);
}

void UnitReader::SetLending(std::function<uint64_t()> event,
                            std::function<bool(uint64_t)> passed) {
  state_->lend = std::move(event);
  state_->lent_passed = std::move(passed);
}

void UnitReader::Cancel() { state_->cancelled = true; }

const std::vector<UnitDamage>& UnitReader::damage() const {
  return state_->damage;
}
uint64_t UnitReader::bytes_done() const { return state_->bytes_done; }
uint64_t UnitReader::bytes_total() const { return state_->bytes_total; }
uint64_t UnitReader::bytes_read() const { return state_->bytes_read; }
uint64_t UnitReader::bytes_placed() const { return state_->bytes_placed; }

FileWant::Pick PickRange(uint64_t first, uint64_t end) {
  return [first, end](std::span<const Unit> units, uint64_t bytes_max) {
    std::vector<UnitRead> reads;
    for (uint32_t i = 0; i < units.size(); ++i) {
      const Unit& unit = units[i];
      if (unit.offset + unit.bytes <= first || unit.offset >= end) continue;
      if (!reads.empty() &&
          reads.back().offset + reads.back().bytes == unit.offset &&
          reads.back().bytes + unit.bytes <= bytes_max) {
        reads.back().bytes += unit.bytes;
        ++reads.back().unit_count;
      } else {
        reads.push_back({unit.offset, unit.bytes, i, 1});
      }
    }
    return reads;
  };
}

FileWant::Pick PickAll() { return PickRange(0, UINT64_MAX); }

}  // namespace holdfast::ckpt
