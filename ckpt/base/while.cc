// ckpt/base/while.cc: see while.h.

#include "ckpt/base/while.h"

#include <string>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

absl::Status While(std::string_view doing, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrFormat("%s: %s", std::string(doing),
                                      std::string(status.message())));
}

}  // namespace holdfast::ckpt
