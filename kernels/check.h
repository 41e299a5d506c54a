// kernels/check.h: KERNEL_CHECK, for arguments that only our own bug can break.
//
// On in every build. Checked once per launch, never per element.

#ifndef HOLDFAST_KERNELS_CHECK_H_
#define HOLDFAST_KERNELS_CHECK_H_

#include <string>

#include "absl/strings/str_format.h"

namespace holdfast::kernels {

// Prints location, condition and message to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace holdfast::kernels

#define KERNEL_CHECK(condition, ...)                                   \
  do {                                                                 \
    if (!(condition)) [[unlikely]] {                                   \
      ::holdfast::kernels::CheckFailed(__FILE__, __LINE__, #condition, \
                                       absl::StrFormat(__VA_ARGS__));  \
    }                                                                  \
  } while (false)

#endif  // HOLDFAST_KERNELS_CHECK_H_
