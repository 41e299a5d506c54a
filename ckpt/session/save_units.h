// ckpt/session/save_units.h: the units of one rank's file, from the snapshot to
// the storage; what SaveWriter writes between the header and the index.
//
// Units are begun in the order of the plan, a bounded number at a time. Each
// has its part of the logical digest taken, is handed to the writer, and is
// given back to the snapshot as soon as its memory is not needed any more:
//
//   plain_units.h    written from the snapshot's own memory, so given back when
//                    it is written and hashed
//   packed_units.h   compressed into a buffer, so given back before it is
//                    written
//
// Thread: the ckpt thread. Memory: taken by the constructor, used for save
//     after save; from Start to the last unit nothing is allocated.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_UNITS_H_
#define HOLDFAST_CKPT_SESSION_SAVE_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/save_plans.h"

namespace holdfast::ckpt {

// What the file is, once all units are written.
struct SaveFileFacts {
  uint64_t index_offset = 0;  // where the units end
  uint64_t file_bytes = 0;    // footer included
  uint32_t unit_count = 0;
  uint64_t plain_bytes = 0;  // of a coded file, as in its footer
};

class SaveUnits {
 public:
  // Submits one write of the file; OnWritten(unit) is its answer.
  using Write = std::function<void(size_t unit, uint64_t offset,
                                   std::span<const std::byte> bytes)>;

  virtual ~SaveUnits() = default;

  // A save begins; the snapshot is armed, and Idle() is true.
  virtual void Start() = 0;

  // Begins what can be begun, submits what can be written, and hashes (and
  // codes) at most one unit. Not OK: the save has failed.
  virtual absl::Status Poll(const Write& write) = 0;

  // The answer to a write. Not OK: the save has failed.
  virtual absl::Status OnWritten(size_t unit, const absl::Status& status) = 0;

  // The save has failed: no unit is begun or ended any more.
  virtual void Stop() = 0;

  // Nothing but unanswered writes uses the snapshot's memory. After Stop: asked
  // until it is true.
  virtual bool Idle() = 0;
  // There is work for Poll now.
  virtual bool eager() const = 0;
  virtual size_t begun() const = 0;
  virtual size_t ended() const = 0;  // given back to the snapshot
  // The last write is submitted.
  virtual bool all_submitted() const = 0;
  // Every unit is written and given back.
  virtual bool all_written() const = 0;

  // After all_written(). The index's bytes may be none.
  virtual SaveFileFacts facts() const = 0;
  virtual std::vector<std::byte> EncodeIndex() const = 0;
  // The index's entries, by offset, of a file that is not coded.
  virtual std::vector<Unit> Entries() const { return {}; }
  virtual const std::vector<Digest128>& item_digests() const = 0;  // by item
  // What is written from, besides the snapshot's memory.
  virtual std::span<std::byte> memory() { return {}; }
};

// Adds what unit `unit` of the own plan contributes to its items.
void AddDigests(const SavePlans& plans, size_t unit,
                std::span<const std::byte> bytes,
                std::vector<Digest128>* digests);

// Storage error of one unit's write, in words.
absl::Status WhileWritingUnit(uint64_t bytes, uint64_t offset,
                              const absl::Status& status);

// A store without the fence, found by a checksum that was taken twice.
absl::Status ChangedMeanwhile(const WriteUnit& unit, uint32_t crc_before,
                              uint32_t crc_now);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_UNITS_H_
