// ckpt/session/save_messages.cc: how the messages of a save are spelled.

#include "ckpt/session/save_messages.h"

#include <utility>

#include "ckpt/format/wire.h"
#include "ckpt/session/message_wire.h"

namespace holdfast::ckpt {

std::string_view NameOf(SaveOutcome outcome) {
  switch (outcome) {
    case SaveOutcome::kCommitted:
      return "committed";
    case SaveOutcome::kAborted:
      return "aborted";
    case SaveOutcome::kFailed:
      return "failed";
    case SaveOutcome::kUnknown:
      return "unknown";
    case SaveOutcome::kSkipped:
      return "skipped";
  }
  return "?";
}

std::vector<std::byte> Encode(const BeginMessage& message) {
  Writer writer;
  writer.Fixed(message.id.step);
  writer.Fixed(message.id.incarnation);
  writer.Fixed(message.id.attempt);
  writer.Fixed(message.repeat);
  PutStatus(writer, message.status);
  return writer.Take();
}

absl::StatusOr<BeginMessage> DecodeBegin(std::span<const std::byte> body) {
  Reader reader(body);
  BeginMessage message;
  message.id.step = reader.Fixed<int64_t>();
  message.id.incarnation = reader.Fixed<uint32_t>();
  message.id.attempt = reader.Fixed<uint32_t>();
  message.repeat = reader.Fixed<uint32_t>();
  message.status = TakeStatus(reader);
  return IfWhole(reader, std::move(message), "begin");
}

std::vector<std::byte> Encode(const VoteMessage& message) {
  Writer writer;
  PutStatus(writer, message.status);
  writer.Fixed(static_cast<uint8_t>(message.busy));
  writer.Fixed(message.plan_hash);
  writer.Fixed(message.file_bytes);
  writer.Fixed(message.plain_bytes);
  writer.Fixed(message.unit_count);
  writer.Fixed(message.crc_index);
  writer.Varint(message.digests.size());
  for (const auto& [item, digest] : message.digests) {
    writer.Fixed(item);
    writer.Fixed(digest.low);
    writer.Fixed(digest.high);
  }
  return writer.Take();
}

absl::StatusOr<VoteMessage> DecodeVote(std::span<const std::byte> body) {
  constexpr size_t kDigestBytes = 20;
  Reader reader(body);
  VoteMessage message;
  message.status = TakeStatus(reader);
  message.busy = reader.Fixed<uint8_t>() != 0;
  message.plan_hash = reader.Fixed<uint64_t>();
  message.file_bytes = reader.Fixed<uint64_t>();
  message.plain_bytes = reader.Fixed<uint64_t>();
  message.unit_count = reader.Fixed<uint32_t>();
  message.crc_index = reader.Fixed<uint32_t>();
  message.digests.resize(reader.Count(kDigestBytes));
  for (auto& [item, digest] : message.digests) {
    item = reader.Fixed<ItemIndex>();
    digest.low = reader.Fixed<uint64_t>();
    digest.high = reader.Fixed<uint64_t>();
  }
  return IfWhole(reader, std::move(message), "vote");
}

std::vector<std::byte> Encode(const PartMessage& message) {
  Writer writer;
  writer.Varint(message.units.size());
  for (const Unit& unit : message.units) {
    writer.Fixed(unit.offset);
    writer.Fixed(unit.bytes);
    writer.Fixed(unit.crc);
  }
  return writer.Take();
}

absl::StatusOr<PartMessage> DecodePart(std::span<const std::byte> body) {
  constexpr size_t kUnitBytes = 16;
  Reader reader(body);
  PartMessage message;
  message.units.resize(reader.Count(kUnitBytes));
  for (Unit& unit : message.units) {
    unit.offset = reader.Fixed<uint64_t>();
    unit.bytes = reader.Fixed<uint32_t>();
    unit.crc = reader.Fixed<uint32_t>();
  }
  return IfWhole(reader, std::move(message), "part");
}

std::vector<std::byte> Encode(const OutcomeMessage& message) {
  Writer writer;
  writer.Fixed(static_cast<uint8_t>(message.outcome));
  PutStatus(writer, message.status);
  return writer.Take();
}

absl::StatusOr<OutcomeMessage> DecodeOutcome(std::span<const std::byte> body) {
  Reader reader(body);
  OutcomeMessage message;
  const auto outcome = reader.Fixed<uint8_t>();
  if (outcome < 1 || outcome > 5) reader.Fail();
  message.outcome = static_cast<SaveOutcome>(outcome);
  message.status = TakeStatus(reader);
  return IfWhole(reader, std::move(message), "outcome");
}

}  // namespace holdfast::ckpt
