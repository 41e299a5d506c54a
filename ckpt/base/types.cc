// ckpt/base/types.cc: how identities are spelled.

#include "ckpt/base/types.h"

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

std::string ToHex(const RunId& id) {
  std::string text;
  for (const uint8_t byte : id) absl::StrAppendFormat(&text, "%02x", byte);
  return text;
}

std::string ToString(const CheckpointId& id) {
  return absl::StrFormat("step-%09d.i%04d.a%02d", id.step, id.incarnation,
                         id.attempt);
}

}  // namespace holdfast::ckpt
