// ckpt/session/packed_units.h: units that are compressed on their way
// (ckpt/format/coded_units.h).
//
//   begun -> coded into a buffer, and digested -> written from there
//                                             \-> given back to the snapshot
//
// The optimizer waits for a unit to be coded and digested, not to be written:
// on a slow disk it is the buffers that are full, units that are not begun are
// copied when the optimizer reaches them, and what it waits for is the next
// free buffer. Units are stored in the order in which they are coded.
//
// Memory: `buffers` times a unit, an encoder for each thread.

#ifndef HOLDFAST_CKPT_SESSION_PACKED_UNITS_H_
#define HOLDFAST_CKPT_SESSION_PACKED_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/session/save_units.h"
#include "ckpt/session/unit_coder.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct PackedUnitsOptions {
  int level = kZstdLevelDefault;
  int threads = 0;
  // Units that are begun and not written.
  size_t buffers = 16;
  // Take a checksum of the plain bytes when a unit is begun, and again before
  // it is given back.
  bool recheck = false;
};

class PackedUnits final : public SaveUnits {
 public:
  // All pointers outlive this.
  PackedUnits(const SavePlans* plans, Snapshot* snapshot,
              const PackedUnitsOptions& options);

  void Start() override;
  absl::Status Poll(const Write& write) override;
  absl::Status OnWritten(size_t unit, const absl::Status& status) override;
  void Stop() override;

  bool Idle() override;
  bool eager() const override {
    return !stopped_ && (hashed_ < begun_ || coder_->eager());
  }
  size_t begun() const override { return begun_; }
  size_t ended() const override { return ended_; }
  bool all_submitted() const override { return coded_ == count(); }
  bool all_written() const override {
    return written_ == count() && ended_ == count();
  }

  SaveFileFacts facts() const override;
  std::vector<std::byte> EncodeIndex() const override;
  const std::vector<Digest128>& item_digests() const override {
    return digests_;
  }
  std::span<std::byte> memory() override { return pool_.span(); }

 private:
  static constexpr uint8_t kCoded = 1;
  static constexpr uint8_t kHashed = 2;

  size_t count() const { return plans_->own().units.size(); }
  std::span<std::byte> BufferOf(size_t unit);
  void Begin();
  absl::Status TakeAnswer(const UnitCoder::Answer& answer, const Write& write);
  absl::Status MaybeEnd(size_t unit);

  const SavePlans* const plans_;
  Snapshot* const snapshot_;
  const bool recheck_;
  size_t slot_bytes_ = 0;
  AlignedBuffer pool_;
  std::vector<uint32_t> free_slots_;
  std::unique_ptr<UnitCoder> coder_;

  bool stopped_ = true;
  size_t begun_ = 0;
  size_t hashed_ = 0;
  size_t coded_ = 0;
  size_t ended_ = 0;
  size_t written_ = 0;
  uint64_t next_offset_ = 0;  // of the file
  // By unit.
  std::vector<const std::byte*> bytes_;  // while begun and not ended
  std::vector<uint32_t> slot_;           // while begun and not written
  std::vector<uint32_t> crc_before_;     // with recheck_
  std::vector<uint8_t> flags_;
  std::vector<uint8_t> planes_;
  std::vector<CodedUnit> index_;
  std::vector<Digest128> digests_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_PACKED_UNITS_H_
