// ckpt/snapshot/staged_snapshot.h: a snapshot that copies the state first, by
// somebody else's asynchronous copies.
//
// For state that the writer cannot read where it is, such as a GPU's. Arm
// enqueues one copy a unit into `staging`, pinned memory as large as all units,
// and the writer takes each unit when its event has passed. The optimizer waits
// for the copies (the bus), never for the disk.
//
//   copies     0==1==2==3==4==
//   written       0=====1=====2=====3=====
//   optimizer              ^ may store into 0 to 4 from here on
//
// Threads: Arm on the step thread; Passed is called from both.

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
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

// The device, as far as a snapshot needs one.
class AsyncCopier {
 public:
  virtual ~AsyncCopier() = default;

  // Enqueues a copy of bytes [offset, offset + to.size()) of a region to `to`,
  // behind all work on the state that was enqueued before. Returns its event.
  virtual uint64_t BeginCopy(uint32_t region, uint64_t offset,
                             std::span<std::byte> to) = 0;

  // The copy is complete and visible to every thread of the host. Never blocks;
  // any thread.
  virtual bool Passed(uint64_t event) = 0;
};

class StagedSnapshot final : public Snapshot {
 public:
  // Bytes of staging that `units` need.
  static uint64_t StagingBytes(std::span<const SnapshotUnit> units);

  // `staging` (at least StagingBytes, page aligned) and `copier` outlive the
  // snapshot. `regions` is their number.
  StagedSnapshot(std::vector<SnapshotUnit> units, size_t regions,
                 std::span<std::byte> staging, AsyncCopier& copier);

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
  bool Staged(size_t unit);

  const std::vector<SnapshotUnit> units_;
  const UnitIndex index_;
  const std::span<std::byte> staging_;
  AsyncCopier& copier_;

  std::vector<uint64_t> staging_offsets_;
  std::vector<uint64_t> events_;  // written by Arm
  std::unique_ptr<std::atomic<bool>[]> staged_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> poisoned_{false};
  mutable std::mutex why_lock_;
  absl::Status why_;  // guarded by why_lock_
  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_STAGED_SNAPSHOT_H_
