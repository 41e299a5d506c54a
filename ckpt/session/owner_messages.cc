// ckpt/session/owner_messages.cc: how the messages of a start are spelled.

#include "ckpt/session/owner_messages.h"

#include <utility>

#include "ckpt/format/manifest.h"
#include "ckpt/format/wire.h"
#include "ckpt/group/group.h"
#include "ckpt/session/message_wire.h"

namespace holdfast::ckpt {
namespace {

// What a choice says besides the manifest: a directory's name, some numbers.
constexpr size_t kChoiceBytesMax = 8192;
static_assert(kManifestBytesMax + kChoiceBytesMax <= kMessageBytesMax,
              "a manifest that a reader accepts must fit into a choice");

}  // namespace

std::vector<std::byte> Encode(const HelloMessage& message) {
  Writer writer;
  writer.String(message.fingerprint);
  writer.String(message.save_options);
  writer.Fixed(message.plan_hash);
  return writer.Take();
}

absl::StatusOr<HelloMessage> DecodeHello(std::span<const std::byte> body) {
  Reader reader(body);
  HelloMessage message;
  message.fingerprint = reader.String();
  message.save_options = reader.String();
  message.plan_hash = reader.Fixed<uint64_t>();
  return IfWhole(reader, std::move(message), "hello");
}

std::vector<std::byte> Encode(const ChoiceMessage& message) {
  Writer writer;
  writer.Fixed(message.run_id);
  writer.Fixed(message.incarnation);
  writer.Fixed(message.round);
  writer.Fixed(message.source);
  writer.Fixed(static_cast<uint8_t>(message.share));
  writer.String(message.dir);
  writer.Varint(message.manifest.size());
  writer.Raw(message.manifest.data(), message.manifest.size());
  return writer.Take();
}

absl::StatusOr<ChoiceMessage> DecodeChoice(std::span<const std::byte> body) {
  Reader reader(body);
  ChoiceMessage message;
  message.run_id = reader.Fixed<RunId>();
  message.incarnation = reader.Fixed<uint32_t>();
  message.round = reader.Fixed<uint32_t>();
  const auto source = reader.Fixed<uint8_t>();
  if (source > static_cast<uint8_t>(ChoiceMessage::Source::kInit)) {
    reader.Fail();
  }
  message.source = static_cast<ChoiceMessage::Source>(source);
  message.share = reader.Fixed<uint8_t>() != 0;
  message.dir = reader.String();
  message.manifest.resize(reader.Count(1));
  reader.Raw(message.manifest.data(), message.manifest.size());
  return IfWhole(reader, std::move(message), "choice");
}

std::vector<std::byte> Encode(const ReportMessage& message) {
  Writer writer;
  writer.Fixed(message.round);
  PutStatus(writer, message.status);
  writer.Fixed(static_cast<uint8_t>(message.damage.has_value()));
  if (message.damage) {
    writer.Fixed(message.damage->file);
    writer.String(message.damage->file_name);
    writer.Fixed(message.damage->offset);
    writer.Fixed(message.damage->image_offset);
    writer.Fixed(message.damage->bytes);
    writer.String(message.damage->what);
    writer.String(message.damage->item);
  }
  writer.Fixed(static_cast<uint8_t>(message.exchange_failed));
  writer.Fixed(message.bytes_read);
  writer.Fixed(message.bytes_received);
  return writer.Take();
}

absl::StatusOr<ReportMessage> DecodeReport(std::span<const std::byte> body) {
  Reader reader(body);
  ReportMessage message;
  message.round = reader.Fixed<uint32_t>();
  message.status = TakeStatus(reader);
  if (reader.Fixed<uint8_t>() != 0) {
    UnitDamage& damage = message.damage.emplace();
    damage.file = reader.Fixed<uint32_t>();
    damage.file_name = reader.String();
    damage.offset = reader.Fixed<uint64_t>();
    damage.image_offset = reader.Fixed<uint64_t>();
    damage.bytes = reader.Fixed<uint64_t>();
    damage.what = reader.String();
    damage.item = reader.String();
  }
  message.exchange_failed = reader.Fixed<uint8_t>() != 0;
  message.bytes_read = reader.Fixed<uint64_t>();
  message.bytes_received = reader.Fixed<uint64_t>();
  return IfWhole(reader, std::move(message), "load report");
}

std::vector<std::byte> Encode(const StopMessage& message) {
  Writer writer;
  writer.Fixed(message.round);
  PutStatus(writer, message.status);
  return writer.Take();
}

absl::StatusOr<StopMessage> DecodeStop(std::span<const std::byte> body) {
  Reader reader(body);
  StopMessage message;
  message.round = reader.Fixed<uint32_t>();
  message.status = TakeStatus(reader);
  return IfWhole(reader, std::move(message), "load stop");
}

std::vector<std::byte> Encode(const VerdictMessage& message) {
  Writer writer;
  PutStatus(writer, message.status);
  writer.Varint(message.stepped_over.size());
  for (const auto& [id, reason] : message.stepped_over) {
    writer.Fixed(id.step);
    writer.Fixed(id.incarnation);
    writer.Fixed(id.attempt);
    writer.String(reason);
  }
  return writer.Take();
}

absl::StatusOr<VerdictMessage> DecodeVerdict(std::span<const std::byte> body) {
  Reader reader(body);
  VerdictMessage message;
  message.status = TakeStatus(reader);
  const size_t count = reader.Count(/*bytes_min=*/17);
  for (size_t i = 0; i < count; ++i) {
    CheckpointId id;
    id.step = reader.Fixed<int64_t>();
    id.incarnation = reader.Fixed<uint32_t>();
    id.attempt = reader.Fixed<uint32_t>();
    std::string reason = reader.String();
    message.stepped_over.emplace_back(id, std::move(reason));
  }
  return IfWhole(reader, std::move(message), "load verdict");
}

}  // namespace holdfast::ckpt
