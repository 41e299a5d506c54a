// ckpt/session/owner_messages.h: what the ranks of a start tell each other.
// Pure: values to bytes and back.

#ifndef HOLDFAST_CKPT_SESSION_OWNER_MESSAGES_H_
#define HOLDFAST_CKPT_SESSION_OWNER_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {

// kPhaseHello, rank -> 0.
struct HelloMessage {
  std::string fingerprint;
  std::string save_options;  // what all ranks must have equal, in words
  uint64_t plan_hash = 0;    // of this rank's own plan; 0: it has none
};

// kPhaseChoice, 0 -> all, passed on along a tree. One for each try.
struct ChoiceMessage {
  enum class Source : uint8_t { kFresh = 0, kRun = 1, kInit = 2 };
  RunId run_id{};
  uint32_t incarnation = 0;
  uint32_t round = 0;
  Source source = Source::kFresh;
  bool share = false;  // each byte is read once by the whole job
  std::string dir;
  std::vector<std::byte> manifest;  // encoded; empty when fresh
};

// kPhaseLoadReport, rank -> 0, one for each choice.
struct ReportMessage {
  uint32_t round = 0;
  absl::Status status;
  std::optional<UnitDamage> damage;  // with kDataLoss, where known
  // What failed is the exchange among the ranks: try again without.
  bool exchange_failed = false;
  uint64_t bytes_read = 0;
  uint64_t bytes_received = 0;  // from ranks that had read them
};

// kPhaseLoadStop, 0 -> all: a try is over, since a rank has failed.
struct StopMessage {
  uint32_t round = 0;
  absl::Status status;
};

// kPhaseLoadVerdict, 0 -> all: the last word of a start.
struct VerdictMessage {
  absl::Status status;  // OK: the run is sealed, go on
  std::vector<std::pair<CheckpointId, std::string>> stepped_over;  // and why
};

std::vector<std::byte> Encode(const HelloMessage& message);
std::vector<std::byte> Encode(const ChoiceMessage& message);
std::vector<std::byte> Encode(const ReportMessage& message);
std::vector<std::byte> Encode(const StopMessage& message);
std::vector<std::byte> Encode(const VerdictMessage& message);

// kInvalidArgument: not such a message (a rank of another build).
absl::StatusOr<HelloMessage> DecodeHello(std::span<const std::byte> body);
absl::StatusOr<ChoiceMessage> DecodeChoice(std::span<const std::byte> body);
absl::StatusOr<ReportMessage> DecodeReport(std::span<const std::byte> body);
absl::StatusOr<StopMessage> DecodeStop(std::span<const std::byte> body);
absl::StatusOr<VerdictMessage> DecodeVerdict(std::span<const std::byte> body);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_OWNER_MESSAGES_H_
