// ckpt/snapshot/staged_snapshot.cc: see staged_snapshot.h.
//
// Orders. Before a store into the state the step thread has seen the copy of
// these bytes pass, or has poisoned the save. The writer reads a slot after the
// copy into it has passed, and before it gives the slot back; the next copy
// into it begins after that.

#include "ckpt/snapshot/staged_snapshot.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {

StagedSnapshot::StagedSnapshot(std::vector<SnapshotUnit> units, size_t regions,
                               CopyPlan plan, std::span<std::byte> arena,
                               AsyncCopier& copier, Clock& clock)
    : units_(std::move(units)),
      plan_(std::move(plan)),
      index_(plan_.copies, regions),
      arena_(arena),
      copier_(copier),
      clock_(clock),
      copies_(std::make_unique<Copy[]>(plan_.copies.size())) {
  HF_CHECK(arena.size() >= plan_.arena_bytes,
           "the arena has %d bytes, the copies need %d", arena.size(),
           plan_.arena_bytes);
  HF_CHECK(plan_.copy_of.size() == units_.size(),
           "copies of %d units, there are %d", plan_.copy_of.size(),
           units_.size());
  free_slots_.reserve(plan_.places.size());
}

void StagedSnapshot::Arm() {
  HF_CHECK(!armed(), "the snapshot is armed while a save is in flight");
  const absl::Duration start = clock_.Monotonic();
  {
    const std::lock_guard lock(why_lock_);
    why_ = absl::OkStatus();
  }
  poisoned_.store(false, std::memory_order_relaxed);
  wait_ns_.store(0, std::memory_order_relaxed);
  bytes_copied_.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < plan_.copies.size(); ++i) {
    copies_[i].state.store(kWaiting, std::memory_order_relaxed);
    copies_[i].units_left = plan_.units_in[i];
  }
  next_copy_ = 0;
  free_slots_.clear();
  for (size_t i = plan_.places.size(); i-- > 0;) {
    free_slots_.push_back(static_cast<uint32_t>(i));
  }
  copier_.Fix();
  BeginCopies();
  copy_ns_.store(absl::ToInt64Nanoseconds(clock_.Monotonic() - start),
                 std::memory_order_relaxed);
  armed_.store(true, std::memory_order_release);
}

void StagedSnapshot::BeginCopies() {
  while (next_copy_ < plan_.copies.size() && !free_slots_.empty()) {
    Copy& copy = copies_[next_copy_];
    const SnapshotUnit& range = plan_.copies[next_copy_];
    copy.slot = free_slots_.back();
    free_slots_.pop_back();
    copy.event = copier_.CopyOut(range.region, range.offset, Place(next_copy_));
    copy.state.store(kBegun, std::memory_order_release);
    ++next_copy_;
  }
}

std::span<std::byte> StagedSnapshot::Place(size_t copy) const {
  return arena_.subspan(plan_.places[copies_[copy].slot],
                        plan_.copies[copy].bytes);
}

bool StagedSnapshot::Passed(size_t number) {
  Copy& copy = copies_[number];
  uint32_t state = copy.state.load(std::memory_order_acquire);
  if (state == kPassed) return true;
  if (state == kWaiting || !copier_.Passed(copy.event)) return false;
  const absl::Status device = copier_.status();
  if (!device.ok()) {
    const SnapshotUnit& range = plan_.copies[number];
    Poison(absl::InternalError(
        absl::StrFormat("copying bytes %d-%d of region %d from the device: %s",
                        range.offset, range.offset + range.bytes - 1,
                        range.region, std::string(device.message()))));
    return false;
  }
  if (copy.state.compare_exchange_strong(state, kPassed,
                                         std::memory_order_acq_rel)) {
    bytes_copied_.fetch_add(plan_.copies[number].bytes,
                            std::memory_order_relaxed);
  }
  return true;
}

bool StagedSnapshot::TryWrite(uint32_t region, uint64_t offset,
                              uint64_t bytes) {
  if (!armed()) return true;
  const bool free = index_.ForEach(
      region, offset, bytes, [this](size_t copy) { return Passed(copy); });
  return free || poisoned_.load(std::memory_order_acquire);
}

FenceCosts StagedSnapshot::costs() const {
  return {bytes_copied_.load(std::memory_order_relaxed),
          wait_ns_.load(std::memory_order_relaxed) / 1e6,
          copy_ns_.load(std::memory_order_relaxed) / 1e6};
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
  const size_t copy = plan_.copy_of[unit];
  if (!Passed(copy)) return std::nullopt;
  return Place(copy).subspan(units_[unit].offset - plan_.copies[copy].offset,
                             units_[unit].bytes);
}

absl::Status StagedSnapshot::EndUnit(size_t unit) {
  Copy& copy = copies_[plan_.copy_of[unit]];
  if (--copy.units_left == 0 && !plan_.whole()) {
    free_slots_.push_back(copy.slot);
    BeginCopies();
  }
  return status();
}

absl::Status StagedSnapshot::status() const {
  if (!poisoned_.load(std::memory_order_seq_cst)) return absl::OkStatus();
  const std::lock_guard lock(why_lock_);
  return why_;
}

void StagedSnapshot::Release() {
  armed_.store(false, std::memory_order_release);
}

}  // namespace holdfast::ckpt
