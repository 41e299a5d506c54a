// ckpt/session/packed_units.cc: see packed_units.h.

#include "ckpt/session/packed_units.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"

namespace holdfast::ckpt {
namespace {

uint64_t LargestUnit(const SavePlan& plan) {
  uint64_t largest = kShardBlockBytes;
  for (const WriteUnit& unit : plan.units) {
    largest = std::max<uint64_t>(largest, unit.bytes);
  }
  return largest;
}

// The width of most bytes of each unit. Items of several widths share one only
// where a region holds several dtypes.
std::vector<uint8_t> PlanesOf(const SavePlans& plans) {
  std::vector<uint8_t> planes;
  for (size_t unit = 0; unit < plans.own().units.size(); ++unit) {
    std::array<uint64_t, 9> bytes = {};  // by width
    for (uint32_t i = plans.piece_first()[unit];
         i < plans.piece_first()[unit + 1]; ++i) {
      const DigestPiece& piece = plans.own().pieces[i];
      const int width = SizeOf(plans.layout().items()[piece.item].dtype);
      bytes[width] += piece.count * width;
    }
    const auto most = std::max_element(bytes.begin() + 1, bytes.end());
    planes.push_back(static_cast<uint8_t>(most - bytes.begin()));
  }
  return planes;
}

}  // namespace

PackedUnits::PackedUnits(const SavePlans* plans, Snapshot* snapshot,
                         const PackedUnitsOptions& options)
    : plans_(plans),
      snapshot_(snapshot),
      recheck_(options.recheck),
      slot_bytes_(LargestUnit(plans->own())),
      pool_(slot_bytes_ * std::clamp<size_t>(options.buffers, 1,
                                             std::max(count(), size_t{1}))),
      coder_(MakeUnitCoder(options.level, slot_bytes_,
                           pool_.size() / slot_bytes_, options.threads)),
      bytes_(count()),
      slot_(count()),
      crc_before_(recheck_ ? count() : 0),
      flags_(count()),
      planes_(PlanesOf(*plans)),
      index_(count()),
      digests_(plans->layout().items().size()) {
  free_slots_.reserve(pool_.size() / slot_bytes_);
}

void PackedUnits::Start() {
  stopped_ = false;
  begun_ = hashed_ = coded_ = ended_ = written_ = 0;
  next_offset_ = kShardBlockBytes;
  free_slots_.resize(pool_.size() / slot_bytes_);
  std::iota(free_slots_.begin(), free_slots_.end(), 0);
  std::fill(flags_.begin(), flags_.end(), 0);
  std::fill(digests_.begin(), digests_.end(), Digest128{});
}

std::span<std::byte> PackedUnits::BufferOf(size_t unit) {
  return pool_.span().subspan(slot_[unit] * slot_bytes_,
                              plans_->own().units[unit].bytes);
}

void PackedUnits::Begin() {
  while (begun_ < count() && !free_slots_.empty()) {
    const auto bytes = snapshot_->BeginUnit(begun_);
    if (!bytes.has_value()) return;
    bytes_[begun_] = bytes->data();
    if (recheck_) crc_before_[begun_] = Crc32c(*bytes);
    slot_[begun_] = free_slots_.back();
    free_slots_.pop_back();
    coder_->Submit({begun_, planes_[begun_], *bytes, BufferOf(begun_)});
    ++begun_;
  }
}

absl::Status PackedUnits::Poll(const Write& write) {
  Begin();
  while (const auto answer = coder_->Poll()) {
    HF_RETURN_IF_ERROR(TakeAnswer(*answer, write));
    if (coder_->eager()) break;  // one at a time, where it costs time
  }
  if (hashed_ == begun_) return absl::OkStatus();
  const size_t unit = hashed_++;
  AddDigests(*plans_, unit, {bytes_[unit], plans_->own().units[unit].bytes},
             &digests_);
  flags_[unit] |= kHashed;
  return MaybeEnd(unit);
}

absl::Status PackedUnits::TakeAnswer(const UnitCoder::Answer& answer,
                                     const Write& write) {
  CodedUnit& coded = index_[answer.unit];
  coded = answer.coded;
  coded.offset = next_offset_;
  next_offset_ += coded.padded_bytes();
  ++coded_;
  flags_[answer.unit] |= kCoded;
  write(answer.unit, coded.offset,
        BufferOf(answer.unit).first(coded.padded_bytes()));
  return MaybeEnd(answer.unit);
}

absl::Status PackedUnits::MaybeEnd(size_t unit) {
  if (flags_[unit] != (kCoded | kHashed)) return absl::OkStatus();
  if (recheck_) {
    const WriteUnit& place = plans_->own().units[unit];
    const uint32_t again = Crc32c({bytes_[unit], place.bytes});
    if (again != crc_before_[unit]) {
      return ChangedMeanwhile(place, crc_before_[unit], again);
    }
  }
  ++ended_;
  return snapshot_->EndUnit(unit);
}

absl::Status PackedUnits::OnWritten(size_t unit, const absl::Status& status) {
  free_slots_.push_back(slot_[unit]);
  ++written_;
  if (stopped_ || status.ok()) return absl::OkStatus();
  return WhileWritingUnit(index_[unit].padded_bytes(), index_[unit].offset,
                          status);
}

void PackedUnits::Stop() {
  if (stopped_) return;
  stopped_ = true;
  coded_ += coder_->Drop();
}

bool PackedUnits::Idle() {
  // What a thread has begun must be over before its memory is given back.
  while (stopped_ && coder_->Poll().has_value()) ++coded_;
  return coded_ == begun_;
}

SaveFileFacts PackedUnits::facts() const {
  SaveFileFacts facts;
  facts.index_offset = next_offset_;
  facts.unit_count = static_cast<uint32_t>(count());
  facts.file_bytes =
      next_offset_ + CodedIndexBytes(facts.unit_count) + kShardBlockBytes;
  facts.plain_bytes = plans_->own().index_offset - kShardBlockBytes;
  return facts;
}

std::vector<std::byte> PackedUnits::EncodeIndex() const {
  std::vector<uint32_t> order(count());
  std::iota(order.begin(), order.end(), 0);
  const std::vector<WriteUnit>& units = plans_->own().units;
  std::sort(order.begin(), order.end(), [&units](uint32_t a, uint32_t b) {
    return units[a].file_offset < units[b].file_offset;
  });
  std::vector<CodedUnit> index;
  index.reserve(order.size());
  for (const uint32_t unit : order) index.push_back(index_[unit]);
  return EncodeCodedIndex(index);
}

}  // namespace holdfast::ckpt
