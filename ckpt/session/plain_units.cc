// ckpt/session/plain_units.cc: see plain_units.h.

#include "ckpt/session/plain_units.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"

namespace holdfast::ckpt {

void AddDigests(const SavePlans& plans, size_t unit,
                std::span<const std::byte> bytes,
                std::vector<Digest128>* digests) {
  const std::vector<ItemSpec>& items = plans.layout().items();
  for (uint32_t i = plans.piece_first()[unit];
       i < plans.piece_first()[unit + 1]; ++i) {
    const DigestPiece& piece = plans.own().pieces[i];
    const ItemSpec& item = items[piece.item];
    (*digests)[piece.item] += DigestRun(
        item, piece.part, piece.first, piece.count,
        bytes.subspan(piece.unit_offset, piece.count * SizeOf(item.dtype)));
  }
}

absl::Status WhileWritingUnit(uint64_t bytes, uint64_t offset,
                              const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrFormat("writing %d bytes at offset %d of its file: %s", bytes,
                      offset, std::string(status.message())));
}

absl::Status ChangedMeanwhile(const WriteUnit& unit, uint32_t crc_before,
                              uint32_t crc_now) {
  return absl::AbortedError(absl::StrFormat(
      "bytes %d-%d of region %d changed while they were being written (crc32c "
      "%08x, then %08x): something stores without the fence",
      unit.region_offset, unit.region_offset + unit.bytes - 1, unit.region,
      crc_before, crc_now));
}

PlainUnits::PlainUnits(const SavePlans* plans, Snapshot* snapshot, size_t depth,
                       bool recheck)
    : plans_(plans),
      snapshot_(snapshot),
      depth_(depth),
      recheck_(recheck),
      bytes_(plans->own().units.size()),
      flags_(plans->own().units.size()),
      index_(plans->own().units.size()),
      digests_(plans->layout().items().size()) {}

void PlainUnits::Start() {
  stopped_ = false;
  begun_ = hashed_ = ended_ = 0;
  std::fill(flags_.begin(), flags_.end(), 0);
  std::fill(digests_.begin(), digests_.end(), Digest128{});
}

absl::Status PlainUnits::Poll(const Write& write) {
  const std::vector<WriteUnit>& units = plans_->own().units;
  while (begun_ < units.size() && begun_ - ended_ < depth_) {
    const auto bytes = snapshot_->BeginUnit(begun_);
    if (!bytes.has_value()) break;
    bytes_[begun_] = bytes->data();
    write(begun_, units[begun_].file_offset, *bytes);
    ++begun_;
  }
  if (hashed_ < begun_) return Hash(hashed_++);
  return absl::OkStatus();
}

absl::Status PlainUnits::Hash(size_t unit) {
  const WriteUnit& place = plans_->own().units[unit];
  const std::span<const std::byte> bytes(bytes_[unit], place.bytes);
  index_[unit] = {place.file_offset, place.bytes, Crc32c(bytes)};
  AddDigests(*plans_, unit, bytes, &digests_);
  flags_[unit] |= kHashed;
  return MaybeEnd(unit);
}

absl::Status PlainUnits::OnWritten(size_t unit, const absl::Status& status) {
  const WriteUnit& place = plans_->own().units[unit];
  flags_[unit] |= kWritten;
  if (stopped_) return absl::OkStatus();
  if (!status.ok()) {
    return WhileWritingUnit(place.bytes, place.file_offset, status);
  }
  if (recheck_ && (flags_[unit] & kHashed)) {
    const uint32_t again = Crc32c({bytes_[unit], place.bytes});
    if (again != index_[unit].crc) {
      return ChangedMeanwhile(place, index_[unit].crc, again);
    }
  }
  return MaybeEnd(unit);
}

absl::Status PlainUnits::MaybeEnd(size_t unit) {
  if (flags_[unit] != (kWritten | kHashed)) return absl::OkStatus();
  ++ended_;
  return snapshot_->EndUnit(unit);
}

SaveFileFacts PlainUnits::facts() const {
  const SavePlans::VoteSize size = plans_->OwnVote();
  return {plans_->leads() ? plans_->file().index_offset
                          : plans_->own().index_offset,
          size.bytes, size.unit_count, /*plain_bytes=*/0};
}

std::vector<Unit> PlainUnits::Entries() const {
  std::vector<Unit> entries = index_;
  std::sort(entries.begin(), entries.end(),
            [](const Unit& a, const Unit& b) { return a.offset < b.offset; });
  return entries;
}

std::vector<std::byte> PlainUnits::EncodeIndex() const {
  return EncodeShardIndex(index_);
}

}  // namespace holdfast::ckpt
