// ckpt/session/plain_units.h: units that are written from the snapshot's own
// memory, without a copy.
//
// A unit's checksum and digest are taken while it travels. It is given back
// when it is written and hashed.

#ifndef HOLDFAST_CKPT_SESSION_PLAIN_UNITS_H_
#define HOLDFAST_CKPT_SESSION_PLAIN_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ckpt/format/shard.h"
#include "ckpt/session/save_units.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

class PlainUnits final : public SaveUnits {
 public:
  // At most `depth` units are begun and not ended. `recheck`: take each
  // checksum again after the write. All pointers outlive this.
  PlainUnits(const SavePlans* plans, Snapshot* snapshot, size_t depth,
             bool recheck);

  void Start() override;
  absl::Status Poll(const Write& write) override;
  absl::Status OnWritten(size_t unit, const absl::Status& status) override;
  void Stop() override { stopped_ = true; }

  bool Idle() override { return true; }
  bool eager() const override { return !stopped_ && hashed_ < begun_; }
  size_t begun() const override { return begun_; }
  size_t ended() const override { return ended_; }
  bool all_submitted() const override { return begun_ == index_.size(); }
  bool all_written() const override { return ended_ == index_.size(); }

  SaveFileFacts facts() const override;
  std::vector<std::byte> EncodeIndex() const override;
  std::vector<Unit> Entries() const override;
  const std::vector<Digest128>& item_digests() const override {
    return digests_;
  }

 private:
  static constexpr uint8_t kWritten = 1;
  static constexpr uint8_t kHashed = 2;

  absl::Status Hash(size_t unit);
  absl::Status MaybeEnd(size_t unit);

  const SavePlans* const plans_;
  Snapshot* const snapshot_;
  const size_t depth_;
  const bool recheck_;

  bool stopped_ = true;
  size_t begun_ = 0;
  size_t hashed_ = 0;
  size_t ended_ = 0;
  std::vector<const std::byte*> bytes_;  // by unit, while begun and not ended
  std::vector<uint8_t> flags_;           // by unit
  std::vector<Unit> index_;              // in the order of the plan
  std::vector<Digest128> digests_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_PLAIN_UNITS_H_
