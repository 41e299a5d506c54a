// ckpt/session/exchange_messages.cc: see exchange_messages.h.

#include "ckpt/session/exchange_messages.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/wire.h"
#include "ckpt/session/message_wire.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kCrcBytes = sizeof(uint32_t);

}  // namespace

std::vector<std::byte> EncodeHead(const PieceMessage& piece, uint64_t size) {
  Writer writer;
  writer.Fixed(uint32_t{0});
  writer.Fixed(piece.kind);
  writer.Fixed(piece.number);
  writer.Fixed(piece.file);
  writer.Fixed(piece.begin);
  writer.Fixed(piece.end);
  std::vector<std::byte> body = writer.Take();
  body.reserve(body.size() + size);
  return body;
}

void SealPiece(std::vector<std::byte>* body) {
  const uint32_t crc = Crc32c(std::span(*body).subspan(kCrcBytes));
  std::memcpy(body->data(), &crc, kCrcBytes);
}

absl::StatusOr<PieceMessage> DecodePiece(std::span<const std::byte> body,
                                         std::span<const std::byte>* packed) {
  Reader reader(body);
  const auto crc = reader.Fixed<uint32_t>();
  PieceMessage piece;
  const auto kind = reader.Fixed<uint8_t>();
  piece.kind = static_cast<PieceMessage::Kind>(kind);
  piece.number = reader.Fixed<uint64_t>();
  piece.file = reader.Fixed<uint32_t>();
  piece.begin = reader.Fixed<uint64_t>();
  piece.end = reader.Fixed<uint64_t>();
  if (!reader.ok() || kind > static_cast<uint8_t>(PieceMessage::Kind::kAlive) ||
      piece.begin > piece.end) {
    return absl::InvalidArgumentError(
        "a piece is malformed: do all ranks run the same program?");
  }
  const uint32_t found = Crc32c(body.subspan(kCrcBytes));
  if (found != crc) {
    return absl::DataLossError(absl::StrFormat(
        "piece %d (file %d, bytes %d-%d) has crc32c %08x, its sender made it "
        "with %08x",
        piece.number, piece.file, piece.begin, piece.end, found, crc));
  }
  *packed = body.subspan(reader.position());
  return piece;
}

std::vector<std::byte> EncodeTaken(uint64_t pieces) {
  Writer writer;
  writer.Fixed(pieces);
  return writer.Take();
}

absl::StatusOr<uint64_t> DecodeTaken(std::span<const std::byte> body) {
  Reader reader(body);
  const auto pieces = reader.Fixed<uint64_t>();
  return IfWhole(reader, pieces, "piece taken");
}

}  // namespace holdfast::ckpt
