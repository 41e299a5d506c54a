// ckpt/snapshot/fence.h: a save from live memory, beside the optimizer.
//
// Writer and optimizer go through the units in the same order:
//
//   unit       0     1     2     3     4     5     6
//   state     done  done  subm. subm. copied pend. pend.
//                          ^ waits            ^ optimizer: copied to the arena
//
//   pending    nobody has touched it; the optimizer copies it, then passes
//   copied     the writer will write the copy; the optimizer passes
//   submitted  live memory is being written; the optimizer waits
//   done       written and checksummed; the optimizer passes
//
// When the arena is full the optimizer waits too. Whoever waits too long
// poisons the save first, and goes on (BlockingWrite).
//
// Each unit has a version. The optimizer bumps it before its first store; the
// writer compares it before it submits and after the write has completed. By
// the states above the two can never differ: the comparison finds a release
// that came too early.
//
// Memory: the arena and about 40 bytes a unit, taken by the constructor. No
//     call allocates, but Poison.
// Cost: TryWrite is a binary search and a few atomics per unit.

#ifndef HOLDFAST_CKPT_SNAPSHOT_FENCE_H_
#define HOLDFAST_CKPT_SNAPSHOT_FENCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct FenceOptions {
  // Rounded down to slots of the largest unit; at least one. 0: 5 % of the
  // units' bytes, at least 4 MiB. Never more than one slot a unit.
  uint64_t arena_bytes = 0;

  // Units are read-only from Arm until TryWrite has let somebody through (or
  // Release): a store without the fence dies by SIGSEGV. Two system calls a
  // unit; needs page-aligned regions. For tests.
  bool protect = false;

  // Canary: a unit is released when it is submitted. Sweeps must catch it.
  bool canary_release_early = false;
};

class Fence final : public Snapshot {
 public:
  // `regions` outlive the fence. Units lie inside them (CHECK).
  Fence(std::vector<SnapshotUnit> units,
        std::vector<std::span<std::byte>> regions, Clock& clock,
        const FenceOptions& options);
  ~Fence() override;

  // The copies are made here; for the registration of buffers.
  std::span<std::byte> arena() { return arena_.span(); }
  uint64_t arena_bytes() const { return arena_.size(); }

  void Arm() override;
  bool TryWrite(uint32_t region, uint64_t offset, uint64_t bytes) override;
  FenceCosts costs() const override;
  void AddWait(absl::Duration wait) override;

  // One atomic load: the whole cost of the fence while nothing is saved.
  bool armed() const override { return armed_.load(std::memory_order_acquire); }
  void Poison(absl::Status why) override;

  size_t unit_count() const override { return units_.size(); }
  std::optional<std::span<const std::byte>> BeginUnit(size_t unit) override;
  absl::Status EndUnit(size_t unit) override;
  absl::Status status() const override;
  void Release() override;

 private:
  enum State : uint32_t {
    kPending,
    kCopying,  // by the step thread, right now
    kCopied,
    kSubmitted,
    kCopySubmitted,
    kDone,
  };
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  struct Shared {
    std::atomic<uint32_t> state{kDone};
    std::atomic<uint32_t> version{0};
    bool read_only = false;          // guarded by protect_lock_
    uint32_t slot = kNoSlot;         // written before kCopied, read after
    uint32_t version_submitted = 0;  // writer only
  };

  bool TryUnit(size_t unit);
  std::optional<uint32_t> TakeSlot();  // step thread
  void ReturnSlot(uint32_t slot);      // ckpt thread
  std::span<std::byte> Live(size_t unit) const;
  std::span<std::byte> Slot(uint32_t slot, size_t unit);
  void Protect(size_t unit, bool read_only);

  const std::vector<SnapshotUnit> units_;
  const std::vector<std::span<std::byte>> regions_;
  const UnitIndex index_;
  Clock& clock_;
  const FenceOptions options_;

  std::mutex protect_lock_;  // used with options_.protect only
  std::unique_ptr<Shared[]> shared_;
  uint64_t slot_bytes_ = 0;
  AlignedBuffer arena_;

  // Free slots: a ring that the ckpt thread fills and the step thread empties.
  std::vector<uint32_t> free_slots_;
  std::atomic<uint64_t> slots_returned_{0};
  std::atomic<uint64_t> slots_taken_{0};

  std::atomic<bool> armed_{false};
  std::atomic<bool> poisoned_{false};
  mutable std::mutex why_lock_;
  absl::Status why_;  // guarded by why_lock_

  std::atomic<uint64_t> bytes_copied_{0};
  std::atomic<int64_t> copy_ns_{0};
  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_FENCE_H_
