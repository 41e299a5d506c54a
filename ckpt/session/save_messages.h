// ckpt/session/save_messages.h: what the ranks of a save tell each other.
// Pure: values to bytes and back.
//
//   rank 0                          every rank, 0 included
//     Begin (step, attempt)   ->      writes its file
//                             <-      Vote (yes: the bytes are durable; or no)
//     Outcome                 ->
//                             <-      Done (nothing of the attempt is touched
//                                     by this rank from here on)
//
// Where several ranks share a file, one of them leads it:
//
//   leader                          the others
//     (file created)          ->      write their parts of it
//                             <-      Part (durable; its units), before the
//                             Vote
//
// A no is sent at once, while writes may still be in flight; Done is not.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_MESSAGES_H_
#define HOLDFAST_CKPT_SESSION_SAVE_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/shard.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

enum class SaveOutcome : uint8_t {
  kCommitted = 1,  // durable: the checkpoint exists
  kAborted = 2,    // another rank failed or was missing
  kFailed = 3,     // this rank failed
  kUnknown = 4,    // perhaps committed; the next reader of the catalog decides
  kSkipped = 5,    // a rank was still busy with the save before
};
std::string_view NameOf(SaveOutcome outcome);

// Which save a rank means. All ranks begin (or skip) the same saves in the same
// order, so equal keys are the same save: the step, and how often that step was
// tried before.
struct SaveKey {
  int64_t step = INT64_MIN;
  uint32_t repeat = 0;
  friend auto operator<=>(const SaveKey&, const SaveKey&) = default;
};

struct BeginMessage {
  CheckpointId id;
  uint32_t repeat = 0;
  SaveKey key() const { return {id.step, repeat}; }
  // OK: write. kUnavailable: rank 0 skips this step. Else rank 0 failed.
  absl::Status status;
};

struct VoteMessage {
  absl::Status status;  // OK: yes
  bool busy = false;    // no, because the save before is not over here
  // Of a yes only. A member's, of a file that another rank leads, speaks of its
  // part: data bytes and units, and no crc_index.
  uint64_t plan_hash = 0;
  uint64_t file_bytes = 0;   // as stored
  uint64_t plain_bytes = 0;  // of a coded file, as in its footer
  uint32_t unit_count = 0;
  uint32_t crc_index = 0;
  std::vector<std::pair<ItemIndex, Digest128>> digests;
};

struct PartMessage {
  std::vector<Unit> units;  // by offset in the file
};

struct OutcomeMessage {
  SaveOutcome outcome = SaveOutcome::kAborted;
  absl::Status status;  // OK exactly when committed
};

std::vector<std::byte> Encode(const BeginMessage& message);
std::vector<std::byte> Encode(const VoteMessage& message);
std::vector<std::byte> Encode(const PartMessage& message);
std::vector<std::byte> Encode(const OutcomeMessage& message);

// kInvalidArgument: not such a message (a rank of another build).
absl::StatusOr<BeginMessage> DecodeBegin(std::span<const std::byte> body);
absl::StatusOr<VoteMessage> DecodeVote(std::span<const std::byte> body);
absl::StatusOr<PartMessage> DecodePart(std::span<const std::byte> body);
absl::StatusOr<OutcomeMessage> DecodeOutcome(std::span<const std::byte> body);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_MESSAGES_H_
