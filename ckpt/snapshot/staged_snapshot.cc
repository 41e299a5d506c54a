// ckpt/snapshot/staged_snapshot.cc: see staged_snapshot.h.

#include "ckpt/snapshot/staged_snapshot.h"

#include <utility>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {

uint64_t StagedSnapshot::StagingBytes(std::span<const SnapshotUnit> units) {
  uint64_t bytes = 0;
  for (const SnapshotUnit& unit : units) bytes += unit.bytes;
  return bytes;
}

StagedSnapshot::StagedSnapshot(std::vector<SnapshotUnit> units, size_t regions,
                               std::span<std::byte> staging,
                               AsyncCopier& copier)
    : units_(std::move(units)),
      index_(units_, regions),
      staging_(staging),
      copier_(copier),
      events_(units_.size()),
      staged_(std::make_unique<std::atomic<bool>[]>(units_.size())) {
  HF_CHECK(staging.size() >= StagingBytes(units_),
           "staging has %d bytes, the units have %d", staging.size(),
           StagingBytes(units_));
  uint64_t offset = 0;
  for (const SnapshotUnit& unit : units_) {
    staging_offsets_.push_back(offset);
    offset += unit.bytes;
  }
}

void StagedSnapshot::Arm() {
  HF_CHECK(!armed(), "the snapshot is armed while a save is in flight");
  {
    const std::lock_guard lock(why_lock_);
    why_ = absl::OkStatus();
  }
  poisoned_.store(false, std::memory_order_relaxed);
  wait_ns_.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < units_.size(); ++i) {
    staged_[i].store(false, std::memory_order_relaxed);
    events_[i] = copier_.BeginCopy(
        units_[i].region, units_[i].offset,
        staging_.subspan(staging_offsets_[i], units_[i].bytes));
  }
  armed_.store(true, std::memory_order_release);
}

bool StagedSnapshot::Staged(size_t unit) {
  if (staged_[unit].load(std::memory_order_acquire)) return true;
  if (!copier_.Passed(events_[unit])) return false;
  staged_[unit].store(true, std::memory_order_release);
  return true;
}

bool StagedSnapshot::TryWrite(uint32_t region, uint64_t offset,
                              uint64_t bytes) {
  if (!armed() || poisoned_.load(std::memory_order_acquire)) return true;
  return index_.ForEach(region, offset, bytes,
                        [this](size_t unit) { return Staged(unit); });
}

FenceCosts StagedSnapshot::costs() const {
  return {StagingBytes(units_), wait_ns_.load(std::memory_order_relaxed) / 1e6,
          0};
}

void StagedSnapshot::AddWait(absl::Duration wait) {
  wait_ns_.fetch_add(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed);
}

void StagedSnapshot::Poison(absl::Status why) {
  HF_CHECK(!why.ok(), "a snapshot is poisoned for a reason");
  const std::lock_guard lock(why_lock_);
  if (why_.ok()) why_ = std::move(why);
  poisoned_.store(true, std::memory_order_seq_cst);
}

std::optional<std::span<const std::byte>> StagedSnapshot::BeginUnit(
    size_t unit) {
  if (!Staged(unit)) return std::nullopt;
  return staging_.subspan(staging_offsets_[unit], units_[unit].bytes);
}

absl::Status StagedSnapshot::EndUnit(size_t) { return status(); }

absl::Status StagedSnapshot::status() const {
  if (!poisoned_.load(std::memory_order_seq_cst)) return absl::OkStatus();
  const std::lock_guard lock(why_lock_);
  return why_;
}

void StagedSnapshot::Release() {
  armed_.store(false, std::memory_order_release);
}

}  // namespace holdfast::ckpt
