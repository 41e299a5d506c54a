// ckpt/session/exchange_messages.h: how the messages of an exchange are
// spelled. Pure.

#ifndef HOLDFAST_CKPT_SESSION_EXCHANGE_MESSAGES_H_
#define HOLDFAST_CKPT_SESSION_EXCHANGE_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::ckpt {

// kPhasePiece, reader -> receiver.
//
//   crc:u32 of the rest, kind:u8 number:u64 file:u32 begin:u64 end:u64, bytes
struct PieceMessage {
  enum class Kind : uint8_t {
    kPiece = 0,  // number: 1, 2, ... for this receiver
    kEnd = 1,    // number: how many there were
    kAlive = 2,  // this rank is still reading
  };
  Kind kind = Kind::kPiece;
  uint64_t number = 0;
  // What the receiver wants of this range, packed (Scatter::AppendPacked).
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The message up to its bytes, of which `size` will be appended; then
// SealPiece puts the checksum in.
std::vector<std::byte> EncodeHead(const PieceMessage& piece, uint64_t size);
void SealPiece(std::vector<std::byte>* body);
// `*packed` are the bytes, inside `body`. kDataLoss: the checksum is another.
// kInvalidArgument: a rank of another build.
absl::StatusOr<PieceMessage> DecodePiece(std::span<const std::byte> body,
                                         std::span<const std::byte>* packed);

// kPhasePieceTaken, receiver -> reader: how many pieces, all in all.
std::vector<std::byte> EncodeTaken(uint64_t pieces);
absl::StatusOr<uint64_t> DecodeTaken(std::span<const std::byte> body);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_EXCHANGE_MESSAGES_H_
