// ckpt/snapshot/fence.cc: see fence.h.
//
// Orders. The writer's reads of a live unit happen before its release store of
// kDone; the step thread's acquire load of kDone happens before its stores. The
// step thread's copy happens before its release store of kCopied; the writer's
// acquire exchange sees it. Poison is stored before the step thread's next
// store into the state, and the writer looks at it after its last read.

#include "ckpt/snapshot/fence.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

constexpr uint64_t kArenaBytesMin = uint64_t{4} << 20;
constexpr uint64_t kArenaShare = 20;  // one part in twenty: 5 %

uint64_t LargestUnit(std::span<const SnapshotUnit> units) {
  uint64_t largest = 0;
  for (const SnapshotUnit& unit : units) {
    largest = std::max<uint64_t>(largest, unit.bytes);
  }
  return largest;
}

size_t SlotCount(std::span<const SnapshotUnit> units, uint64_t arena_bytes) {
  if (units.empty()) return 0;
  if (arena_bytes == 0) {
    uint64_t total = 0;
    for (const SnapshotUnit& unit : units) total += unit.bytes;
    arena_bytes = std::max(total / kArenaShare, kArenaBytesMin);
  }
  return std::clamp<uint64_t>(arena_bytes / LargestUnit(units), 1,
                              units.size());
}

}  // namespace

Fence::Fence(std::vector<SnapshotUnit> units,
             std::vector<std::span<std::byte>> regions, Clock& clock,
             const FenceOptions& options)
    : units_(std::move(units)),
      regions_(std::move(regions)),
      index_(units_, regions_.size()),
      clock_(clock),
      options_(options),
      shared_(std::make_unique<Shared[]>(units_.size())),
      slot_bytes_(LargestUnit(units_)),
      arena_(slot_bytes_ * SlotCount(units_, options.arena_bytes)),
      free_slots_(SlotCount(units_, options.arena_bytes)) {
  for (size_t i = 0; i < units_.size(); ++i) {
    const SnapshotUnit& unit = units_[i];
    HF_CHECK(unit.offset + unit.bytes <= regions_[unit.region].size(),
             "unit %d ends at byte %d of region %d, which has %d", i,
             unit.offset + unit.bytes, unit.region,
             regions_[unit.region].size());
  }
}

Fence::~Fence() {
  for (size_t i = 0; i < units_.size(); ++i) Protect(i, false);
}

void Fence::Arm() {
  HF_CHECK(!armed(), "the fence is armed while a save is in flight");
  for (size_t i = 0; i < units_.size(); ++i) {
    shared_[i].slot = kNoSlot;
    shared_[i].state.store(kPending, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < free_slots_.size(); ++i) free_slots_[i] = i;
  slots_taken_.store(0, std::memory_order_relaxed);
  slots_returned_.store(free_slots_.size(), std::memory_order_relaxed);
  {
    const std::lock_guard lock(why_lock_);
    why_ = absl::OkStatus();
  }
  poisoned_.store(false, std::memory_order_relaxed);
  bytes_copied_.store(0, std::memory_order_relaxed);
  copy_ns_.store(0, std::memory_order_relaxed);
  wait_ns_.store(0, std::memory_order_relaxed);
  if (options_.protect) {
    for (size_t i = 0; i < units_.size(); ++i) Protect(i, true);
  }
  armed_.store(true, std::memory_order_release);
}

bool Fence::TryWrite(uint32_t region, uint64_t offset, uint64_t bytes) {
  if (!armed()) return true;
  return index_.ForEach(region, offset, bytes,
                        [this](size_t unit) { return TryUnit(unit); });
}

bool Fence::TryUnit(size_t unit) {
  Shared& shared = shared_[unit];
  while (!poisoned_.load(std::memory_order_acquire)) {
    uint32_t state = shared.state.load(std::memory_order_acquire);
    if (state == kSubmitted) return false;
    if (state != kPending) break;
    const std::optional<uint32_t> slot = TakeSlot();
    if (!slot.has_value()) return false;
    if (!shared.state.compare_exchange_strong(state, kCopying,
                                              std::memory_order_acq_rel)) {
      // The writer took the unit meanwhile: give the slot back, look again.
      slots_taken_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    const absl::Duration start = clock_.Monotonic();
    shared.slot = *slot;
    std::memcpy(Slot(*slot, unit).data(), Live(unit).data(),
                units_[unit].bytes);
    shared.state.store(kCopied, std::memory_order_release);
    bytes_copied_.fetch_add(units_[unit].bytes, std::memory_order_relaxed);
    copy_ns_.fetch_add(absl::ToInt64Nanoseconds(clock_.Monotonic() - start),
                       std::memory_order_relaxed);
    break;
  }
  Protect(unit, false);
  shared.version.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

FenceCosts Fence::costs() const {
  return {bytes_copied_.load(std::memory_order_relaxed),
          wait_ns_.load(std::memory_order_relaxed) / 1e6,
          copy_ns_.load(std::memory_order_relaxed) / 1e6};
}

void Fence::AddWait(absl::Duration wait) {
  wait_ns_.fetch_add(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed);
}

void Fence::Poison(absl::Status why) {
  HF_CHECK(!why.ok(), "a snapshot is poisoned for a reason");
  const std::lock_guard lock(why_lock_);
  if (why_.ok()) why_ = std::move(why);
  poisoned_.store(true, std::memory_order_seq_cst);
}

std::optional<std::span<const std::byte>> Fence::BeginUnit(size_t unit) {
  Shared& shared = shared_[unit];
  shared.version_submitted = shared.version.load(std::memory_order_acquire);
  uint32_t state = kPending;
  const uint32_t taken =
      options_.canary_release_early ? uint32_t{kDone} : uint32_t{kSubmitted};
  if (shared.state.compare_exchange_strong(state, taken,
                                           std::memory_order_acq_rel)) {
    return Live(unit);
  }
  if (state == kCopying) return std::nullopt;
  HF_CHECK(state == kCopied, "unit %d is begun in state %d", unit, state);
  shared.state.store(kCopySubmitted, std::memory_order_relaxed);
  return Slot(shared.slot, unit);
}

absl::Status Fence::EndUnit(size_t unit) {
  Shared& shared = shared_[unit];
  const uint32_t state = shared.state.load(std::memory_order_relaxed);
  if (state == kCopySubmitted) {
    shared.state.store(kDone, std::memory_order_release);
    ReturnSlot(shared.slot);
    return absl::OkStatus();
  }
  HF_CHECK(
      state == kSubmitted || (options_.canary_release_early && state == kDone),
      "unit %d is ended in state %d", unit, state);
  const uint32_t version = shared.version.load(std::memory_order_acquire);
  if (version != shared.version_submitted) {
    absl::Status changed = absl::AbortedError(absl::StrFormat(
        "bytes %d-%d of region %d were released to the optimizer while they "
        "were being written (version %d, expected %d)",
        units_[unit].offset, units_[unit].offset + units_[unit].bytes - 1,
        units_[unit].region, version, shared.version_submitted));
    Poison(changed);
    shared.state.store(kDone, std::memory_order_release);
    return changed;
  }
  shared.state.store(kDone, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Fence::status() const {
  if (!poisoned_.load(std::memory_order_seq_cst)) return absl::OkStatus();
  const std::lock_guard lock(why_lock_);
  return why_;
}

void Fence::Release() {
  for (size_t i = 0; i < units_.size(); ++i) Protect(i, false);
  armed_.store(false, std::memory_order_release);
}

std::optional<uint32_t> Fence::TakeSlot() {
  const uint64_t taken = slots_taken_.load(std::memory_order_relaxed);
  if (taken == slots_returned_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const uint32_t slot = free_slots_[taken % free_slots_.size()];
  slots_taken_.store(taken + 1, std::memory_order_relaxed);
  return slot;
}

void Fence::ReturnSlot(uint32_t slot) {
  // Never overwrites an entry that is still to be taken: at most all slots are
  // free, and the ring has room for all.
  const uint64_t returned = slots_returned_.load(std::memory_order_relaxed);
  free_slots_[returned % free_slots_.size()] = slot;
  slots_returned_.store(returned + 1, std::memory_order_release);
}

std::span<std::byte> Fence::Live(size_t unit) const {
  return regions_[units_[unit].region].subspan(units_[unit].offset,
                                               units_[unit].bytes);
}

std::span<std::byte> Fence::Slot(uint32_t slot, size_t unit) {
  return arena_.span().subspan(slot * slot_bytes_, units_[unit].bytes);
}

void Fence::Protect(size_t unit, bool read_only) {
  if (!options_.protect) return;
  const std::lock_guard lock(protect_lock_);
  if (std::exchange(shared_[unit].read_only, read_only) == read_only) return;
  const std::span<std::byte> bytes = Live(unit);
  const int result = mprotect(bytes.data(), bytes.size(),
                              read_only ? PROT_READ : PROT_READ | PROT_WRITE);
  HF_CHECK(result == 0, "mprotect of %d bytes: errno %d", bytes.size(), errno);
}

}  // namespace holdfast::ckpt
