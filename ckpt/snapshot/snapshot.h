// ckpt/snapshot/snapshot.h: a state that stays as it was while it is written.
//
// The state is a list of units in the order in which both the writer and the
// optimizer go through it. Two threads meet here:
//
//   step thread   Arm, then TryWrite before each store    (or BlockingWrite)
//   ckpt thread   BeginUnit, EndUnit in order; Release at the end
//
// Fence (fence.h) is the snapshot that copies nothing while the writer keeps
// ahead: it hands out live memory. StagedSnapshot (staged_snapshot.h) copies
// everything first, by somebody else's asynchronous copies, as a GPU needs.

#ifndef HOLDFAST_CKPT_SNAPSHOT_SNAPSHOT_H_
#define HOLDFAST_CKPT_SNAPSHOT_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"

namespace holdfast::ckpt {

// A piece of one region that is written, checksummed and released as one.
// `offset` and `bytes` are multiples of 4096. Units do not overlap.
struct SnapshotUnit {
  uint32_t region = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  friend bool operator==(const SnapshotUnit&, const SnapshotUnit&) = default;
};

// What the step thread paid since Arm.
struct FenceCosts {
  uint64_t bytes_copied = 0;
  double wait_ms = 0;
  double copy_ms = 0;
};

class Snapshot {
 public:
  virtual ~Snapshot() = default;

  // --- Step thread ---------------------------------------------------------

  // Fixes the state as it is now. Released before, or never armed (CHECK).
  virtual void Arm() = 0;

  // True: the bytes may be stored into. False: not yet, ask again; what was
  // achieved for a part of the range is kept. Never blocks longer than a copy
  // of the units that the range touches. Not armed, or given up: true.
  virtual bool TryWrite(uint32_t region, uint64_t offset, uint64_t bytes) = 0;

  virtual FenceCosts costs() const = 0;  // any thread
  virtual void AddWait(absl::Duration wait) = 0;

  // --- Either --------------------------------------------------------------

  virtual bool armed() const = 0;

  // The snapshot is lost, and says so before anything of it changes: TryWrite
  // is true from now on, status() is `why`. The first reason stays.
  virtual void Poison(absl::Status why) = 0;

  // --- Ckpt thread ---------------------------------------------------------

  virtual size_t unit_count() const = 0;

  // The bytes of a unit; they stay until EndUnit. nullopt: not there yet, ask
  // again. In order, each unit once.
  virtual std::optional<std::span<const std::byte>> BeginUnit(size_t unit) = 0;

  // Its write has completed and its checksum is done. kAborted: the bytes may
  // have changed in between.
  virtual absl::Status EndUnit(size_t unit) = 0;

  // OK while every byte handed out was the one at Arm.
  virtual absl::Status status() const = 0;

  // The save is over, well or not: nothing that was handed out is read any
  // more. Disarms.
  virtual void Release() = 0;
};

// TryWrite until it is true, sleeping between; after `patience` poisons the
// snapshot and returns. The wait is counted in costs().
void BlockingWrite(Snapshot& snapshot, Clock& clock, absl::Duration patience,
                   uint32_t region, uint64_t offset, uint64_t bytes);

// Finds the units that a range touches. Built once; look-ups allocate nothing.
class UnitIndex {
 public:
  UnitIndex(std::span<const SnapshotUnit> units, size_t regions);

  // Calls visit(unit) for each unit that meets [offset, offset + bytes), by
  // offset; stops and returns false when a visit does.
  template <typename Visit>
  bool ForEach(uint32_t region, uint64_t offset, uint64_t bytes,
               Visit&& visit) const {
    if (region >= regions_.size()) return true;
    const std::vector<Place>& places = regions_[region];
    for (size_t i = FirstEndingAfter(places, offset); i < places.size(); ++i) {
      if (places[i].first >= offset + bytes) break;
      if (!visit(places[i].unit)) return false;
    }
    return true;
  }

 private:
  struct Place {
    uint64_t first;
    uint64_t end;
    size_t unit;
  };
  static size_t FirstEndingAfter(const std::vector<Place>& places,
                                 uint64_t offset);

  std::vector<std::vector<Place>> regions_;  // each by offset
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_SNAPSHOT_H_
