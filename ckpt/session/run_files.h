// ckpt/session/run_files.h: names and small records of a run directory. Pure.
//
//   RUN/run.id                                the run's 128-bit identity
//   RUN/owners/i0003.claim                    a job took the run
//   RUN/owners/i0003.seal                     what that job counts on
//   RUN/checkpoints/run.id                    the same identity: a forgotten
//                                             mount is not taken for this run
//   RUN/conversion/record                     an offline conversion makes the
//                                             run and has not finished
//                                             (ckpt/convert/convert_record.h)
//   RUN/checkpoints/step-000000120.i0003.a01/          an attempt to save
//   RUN/checkpoints/step-000000120.i0003.a01.o0004/    adopted by owner 4
//       shard-00000.hf ... MANIFEST
//
// Small files are made by put-if-absent, once.
//
// Who owns what. The newest claim is the owner. It renames the directory of
// every checkpoint that it counts on to its own ".oNNNN" name, so that a late
// process of an earlier owner finds no path to delete or to commit into; it
// loads; then it puts its seal. A checkpoint counts when its manifest exists
// and either its id is in the newest seal, or its incarnation is the sealing
// owner's. An owner that has not sealed has committed nothing.
//
// Newest. A seal names its head, the checkpoint that the incarnation started
// from (none: a fresh start). The newest checkpoint is the newest commit of the
// sealing incarnation, else its head. What the seal stepped over (a rewind,
// damage) is listed as superseded: kept for people until retention takes it,
// never offered.

#ifndef HOLDFAST_CKPT_SESSION_RUN_FILES_H_
#define HOLDFAST_CKPT_SESSION_RUN_FILES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/process.h"
#include "ckpt/base/types.h"

namespace holdfast::ckpt {

struct OwnerClaim {
  RunId run_id{};
  uint32_t incarnation = 0;
  std::string host;
  int64_t pid = 0;
  int64_t time_unix_ms = 0;
  uint32_t world = 0;
  // Of the process; empty in claims of early programs, and where /proc is not
  // what it should be.
  ProcessMark mark = {};
  friend bool operator==(const OwnerClaim&, const OwnerClaim&) = default;
};

// A checkpoint as a seal lists it. `manifest_crc` is the checksum that its
// manifest ends with, so that another manifest under the same name is found.
struct SealedCheckpoint {
  CheckpointId id;
  uint64_t commit_number = 0;
  uint32_t manifest_crc = 0;
  friend bool operator==(const SealedCheckpoint&,
                         const SealedCheckpoint&) = default;
};

struct SupersededCheckpoint {
  SealedCheckpoint checkpoint;
  std::string reason;  // "rewind", "damaged: <what>"
  friend bool operator==(const SupersededCheckpoint&,
                         const SupersededCheckpoint&) = default;
};

struct OwnerSeal {
  RunId run_id{};
  uint32_t incarnation = 0;
  std::optional<CheckpointId> head;
  // The line that leads to the head, oldest first, head last.
  std::vector<SealedCheckpoint> line;
  std::vector<SupersededCheckpoint> superseded;
  friend bool operator==(const OwnerSeal&, const OwnerSeal&) = default;
};

// Records are self-describing text with a checksum line (ckpt/FORMAT.md).
// Decode: kDataLoss with what was expected and found.
std::vector<std::byte> EncodeClaim(const OwnerClaim& claim);
absl::StatusOr<OwnerClaim> DecodeClaim(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeSeal(const OwnerSeal& seal);
absl::StatusOr<OwnerSeal> DecodeSeal(std::span<const std::byte> bytes);

std::vector<std::byte> EncodeRunId(const RunId& id);
absl::StatusOr<RunId> DecodeRunId(std::span<const std::byte> bytes);

inline constexpr char kRunIdName[] = "run.id";
inline constexpr char kOwnersDir[] = "owners";
inline constexpr char kCheckpointsDir[] = "checkpoints";
inline constexpr char kCheckpointsRunIdName[] = "checkpoints/run.id";
inline constexpr char kConversionDir[] = "conversion";
inline constexpr char kConversionRecord[] = "record";  // in it
inline constexpr char kConversionRecordName[] = "conversion/record";
// No record is longer; a seal of 10,000 checkpoints has 1 MB.
inline constexpr uint64_t kRecordBytesMax = uint64_t{16} << 20;

std::string ClaimName(uint32_t incarnation);  // "owners/i0003.claim"
std::string SealName(uint32_t incarnation);
std::string AttemptDir(const CheckpointId& id);  // "checkpoints/step-...a01"
std::string AdoptedDir(const CheckpointId& id, uint32_t owner);

// A directory entry of checkpoints/, if it is one of ours.
struct ParsedDir {
  CheckpointId id;
  std::optional<uint32_t> owner;
};
std::optional<ParsedDir> ParseCheckpointDir(std::string_view entry);
// "step-000000120.i0003.a01"
std::optional<CheckpointId> ParseCheckpointId(std::string_view text);

// An entry of owners/, if it is one of ours.
struct ParsedOwnerFile {
  uint32_t incarnation = 0;
  bool is_seal = false;
};
std::optional<ParsedOwnerFile> ParseOwnerFile(std::string_view entry);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_RUN_FILES_H_
