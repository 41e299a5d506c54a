// ckpt/session/message_wire.h: what the messages of sessions have in common:
// statuses, and that nothing may be missing or left over. Private to
// ckpt/session.

#ifndef HOLDFAST_CKPT_SESSION_MESSAGE_WIRE_H_
#define HOLDFAST_CKPT_SESSION_MESSAGE_WIRE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {

inline void PutStatus(Writer& writer, const absl::Status& status) {
  writer.Varint(static_cast<uint64_t>(status.code()));
  writer.String(std::string(status.message()));
}

inline absl::Status TakeStatus(Reader& reader) {
  const uint64_t code = reader.Varint();
  const std::string text = reader.String();
  if (code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)) {
    reader.Fail();
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

// `message` when `reader` has come to its end and no further. kInvalidArgument:
// a rank of another build.
template <typename T>
absl::StatusOr<T> IfWhole(const Reader& reader, T message, const char* what) {
  if (reader.ok() && reader.left() == 0) return message;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a %s message is malformed: do all ranks run the same program?", what));
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_MESSAGE_WIRE_H_
