// ckpt/session/save_messages.cc: little-endian integers, texts with a length in
// front, nothing left over.

#include "ckpt/session/save_messages.h"

#include <string>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {
namespace {

class Writer {
 public:
  void U8(uint8_t value) { bytes_.push_back(std::byte{value}); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void Text(std::string_view text) {
    U32(text.size());
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  void Status(const absl::Status& status) {
    U8(static_cast<uint8_t>(status.code()));
    const std::string text(status.message());
    Text(text);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  void Integer(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
  }
  std::vector<std::byte> bytes_;
};

// After the first shortage every answer is zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Integer(1)); }
  uint32_t U32() { return static_cast<uint32_t>(Integer(4)); }
  uint64_t U64() { return Integer(8); }
  std::string Text() {
    const uint32_t size = U32();
    if (size > bytes_.size()) {
      ok_ = false;
      return "";
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return text;
  }
  absl::Status Status() {
    const uint8_t code = U8();
    const std::string text = Text();
    if (code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
      ok_ = false;
    }
    return absl::Status(static_cast<absl::StatusCode>(code), text);
  }
  size_t left() const { return bytes_.size(); }
  void Fail() { ok_ = false; }

  // OK when everything was there and nothing is left.
  absl::Status Finish(const char* what) const {
    if (ok_ && bytes_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "a %s message is malformed: do all ranks run the same build?", what));
  }

 private:
  uint64_t Integer(size_t size) {
    if (bytes_.size() < size) {
      ok_ = false;
      bytes_ = {};
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
    }
    bytes_ = bytes_.subspan(size);
    return value;
  }
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace

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
  writer.U64(message.id.step);
  writer.U32(message.id.incarnation);
  writer.U32(message.id.attempt);
  writer.U32(message.repeat);
  writer.Status(message.status);
  return writer.Take();
}

absl::StatusOr<BeginMessage> DecodeBegin(std::span<const std::byte> body) {
  Reader reader(body);
  BeginMessage message;
  message.id.step = static_cast<int64_t>(reader.U64());
  message.id.incarnation = reader.U32();
  message.id.attempt = reader.U32();
  message.repeat = reader.U32();
  message.status = reader.Status();
  const absl::Status whole = reader.Finish("begin");
  if (!whole.ok()) return whole;
  return message;
}

std::vector<std::byte> Encode(const VoteMessage& message) {
  Writer writer;
  writer.Status(message.status);
  writer.U8(message.busy ? 1 : 0);
  writer.U64(message.plan_hash);
  writer.U64(message.file_bytes);
  writer.U32(message.unit_count);
  writer.U32(message.crc_index);
  writer.U32(message.digests.size());
  for (const auto& [item, digest] : message.digests) {
    writer.U32(item);
    writer.U64(digest.low);
    writer.U64(digest.high);
  }
  return writer.Take();
}

absl::StatusOr<VoteMessage> DecodeVote(std::span<const std::byte> body) {
  constexpr size_t kDigestBytes = 20;
  Reader reader(body);
  VoteMessage message;
  message.status = reader.Status();
  message.busy = reader.U8() != 0;
  message.plan_hash = reader.U64();
  message.file_bytes = reader.U64();
  message.unit_count = reader.U32();
  message.crc_index = reader.U32();
  const uint32_t digests = reader.U32();
  if (digests > reader.left() / kDigestBytes) {
    reader.Fail();
  } else {
    message.digests.reserve(digests);
    for (uint32_t i = 0; i < digests; ++i) {
      const ItemIndex item = reader.U32();
      const uint64_t low = reader.U64();
      message.digests.emplace_back(item, Digest128{low, reader.U64()});
    }
  }
  const absl::Status whole = reader.Finish("vote");
  if (!whole.ok()) return whole;
  return message;
}

std::vector<std::byte> Encode(const OutcomeMessage& message) {
  Writer writer;
  writer.U8(static_cast<uint8_t>(message.outcome));
  writer.Status(message.status);
  return writer.Take();
}

absl::StatusOr<OutcomeMessage> DecodeOutcome(std::span<const std::byte> body) {
  Reader reader(body);
  OutcomeMessage message;
  const uint8_t outcome = reader.U8();
  if (outcome < 1 || outcome > 5) reader.Fail();
  message.outcome = static_cast<SaveOutcome>(outcome);
  message.status = reader.Status();
  const absl::Status whole = reader.Finish("outcome");
  if (!whole.ok()) return whole;
  return message;
}

}  // namespace holdfast::ckpt
