// tests/support/saved_run.h: checkpoints of a small job, written one call after
// the other by plain code, for tests of what reads them.
//
// Every element's value follows from (seed, item, place in the item), so that
// any rank of any layout can check what it loaded.

#ifndef HOLDFAST_TESTS_SUPPORT_SAVED_RUN_H_
#define HOLDFAST_TESTS_SUPPORT_SAVED_RUN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/types.h"
#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"
#include "ckpt/layout/train_layout.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/storage.h"

namespace holdfast::tests {

// A decoder of 2 layers, a few tens of KB of state; any tp of 1, 2, 4, any pp
// of 1, 2.
std::unique_ptr<ckpt::TrainLayout> SmallLayout(int tp, int pp, int dp);

// A rank's regions.
class JobMemory {
 public:
  explicit JobMemory(const ckpt::Holding& holding);  // zeros
  // Filled with the values of `seed`.
  JobMemory(const ckpt::JobLayout& layout, const ckpt::Holding& holding,
            uint64_t seed);

  std::vector<std::span<std::byte>> spans();
  // "" when it holds exactly the values of `seed` and zeros between, else the
  // first byte that is wrong.
  std::string Differs(const ckpt::JobLayout& layout,
                      const ckpt::Holding& holding, uint64_t seed) const;

 private:
  std::vector<ckpt::AlignedBuffer> regions_;
};

struct CheckpointSpec {
  ckpt::RunId run_id{};
  ckpt::CheckpointId id;
  uint64_t commit_number = 1;
  std::optional<ckpt::CheckpointId> parent;
  std::map<std::string, std::string> attributes;
  uint64_t seed = 0;    // of the values
  int zstd_level = -1;  // from 0 on: coded files
};

// Writes the shard files of every rank into `dir`, which it makes (its parent
// exists), and returns the manifest.
absl::StatusOr<ckpt::Manifest> WriteShards(ckpt::Storage& storage,
                                           const ckpt::JobLayout& layout,
                                           const CheckpointSpec& spec,
                                           const std::string& dir);
absl::Status WriteManifest(ckpt::Storage& storage, const std::string& dir,
                           const ckpt::Manifest& manifest);
// Both.
absl::Status WriteCheckpoint(ckpt::Storage& storage,
                             const ckpt::JobLayout& layout,
                             const CheckpointSpec& spec,
                             const std::string& dir);

// A run directory as a job leaves it that claimed, sealed `line_before` ... and
// died: run.id, owners/i000N.{claim,seal}, checkpoints/.
inline constexpr ckpt::RunId kTestRun = {1, 2,  3,  4,  5,  6,  7,  8,
                                         9, 10, 11, 12, 13, 14, 15, 16};
absl::Status MakeRun(ckpt::Storage& storage);
absl::Status Claim(ckpt::Storage& storage, uint32_t incarnation);
absl::Status Seal(ckpt::Storage& storage, ckpt::OwnerSeal seal);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SAVED_RUN_H_
