// ckpt/snapshot/staged_snapshot.h: a snapshot that copies the state first, by
// somebody else's asynchronous copies.
//
// For state that the writer cannot read where it is, such as a GPU's. Arm
// begins copies into an arena that the writer can read, by default as large as
// all units, and the writer takes each unit when its copy has passed. The
// optimizer waits for the copies (the bus), never for the disk:
//
//   copies     0==1==2==3==4==
//   written       0=====1=====2=====3=====
//   optimizer              ^ may store into 0 to 4 from here on
//
// A smaller arena is a ring: a copy begins when the units of an earlier one
// have been written, and then the optimizer may wait for the disk too, for
// units that are not copied yet.
//
//   waiting -> begun -> passed      Arm begins the first copies, EndUnit the
//                                   later ones; who asks first sees one pass
//
// Nobody stops a copy. After Poison, or Release in the middle of a save, those
// under way go on into memory that nobody reads, and the next save's begin
// behind them.
//
// Threads: as snapshot.h says. Memory: tables of 60 bytes a copy, taken by the
//     constructor. Cost: TryWrite asks for each copy once until it has passed,
//     then it is a binary search and an atomic load.

#ifndef HOLDFAST_CKPT_SNAPSHOT_STAGED_SNAPSHOT_H_
#define HOLDFAST_CKPT_SNAPSHOT_STAGED_SNAPSHOT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/clock.h"
#include "ckpt/snapshot/async_copier.h"
#include "ckpt/snapshot/copy_plan.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

class StagedSnapshot final : public Snapshot {
 public:
  // `plan` is of `units`; `arena`, from the copier, has the plan's bytes.
  // `regions` is their number. All outlive the snapshot.
  StagedSnapshot(std::vector<SnapshotUnit> units, size_t regions, CopyPlan plan,
                 std::span<std::byte> arena, AsyncCopier& copier, Clock& clock);

  void Arm() override;
  bool TryWrite(uint32_t region, uint64_t offset, uint64_t bytes) override;
  FenceCosts costs() const override;
  void AddWait(absl::Duration wait) override;
  bool armed() const override { return armed_.load(std::memory_order_acquire); }
  void Poison(absl::Status why) override;
  size_t unit_count() const override { return units_.size(); }
  std::optional<std::span<const std::byte>> BeginUnit(size_t unit) override;
  absl::Status EndUnit(size_t unit) override;
  absl::Status status() const override;
  void Release() override;

 private:
  enum State : uint32_t { kWaiting, kBegun, kPassed };
  struct Copy {
    std::atomic<uint32_t> state{kWaiting};
    uint64_t event = 0;       // written before kBegun, read after
    uint32_t slot = 0;        // as `event`
    uint32_t units_left = 0;  // ckpt thread
  };

  // As many as there are free slots for. Step thread in Arm, then ckpt thread.
  void BeginCopies();
  // Any thread. A copy of a device that has failed never passes; it poisons.
  bool Passed(size_t copy);
  // The copy's bytes in the arena.
  std::span<std::byte> Place(size_t copy) const;

  const std::vector<SnapshotUnit> units_;
  const CopyPlan plan_;
  const UnitIndex index_;  // of copies
  const std::span<std::byte> arena_;
  AsyncCopier& copier_;
  Clock& clock_;

  std::unique_ptr<Copy[]> copies_;
  size_t next_copy_ = 0;              // to be begun
  std::vector<uint32_t> free_slots_;  // its end is taken next

  std::atomic<bool> armed_{false};
  std::atomic<bool> poisoned_{false};
  mutable std::mutex why_lock_;
  absl::Status why_;  // guarded by why_lock_
  std::atomic<uint64_t> bytes_copied_{0};
  std::atomic<int64_t> copy_ns_{0};
  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_STAGED_SNAPSHOT_H_
