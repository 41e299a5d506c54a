// ckpt/base/check.h: HF_CHECK, for what only our own bug can break.
//
// On in every build. What the world can do to us is an absl::Status instead.
//
//   HF_CHECK(offset % kAlignment == 0, "offset %d is not aligned", offset);

#ifndef HOLDFAST_CKPT_BASE_CHECK_H_
#define HOLDFAST_CKPT_BASE_CHECK_H_

#include <string>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

// Prints the location, the condition and the message to stderr, then aborts
// with a core where the system allows one.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace holdfast::ckpt

#define HF_CHECK(condition, ...)                                    \
  do {                                                              \
    if (!(condition)) [[unlikely]] {                                \
      ::holdfast::ckpt::CheckFailed(__FILE__, __LINE__, #condition, \
                                    absl::StrFormat(__VA_ARGS__));  \
    }                                                               \
  } while (false)

#endif  // HOLDFAST_CKPT_BASE_CHECK_H_
