// kernels/check.cc: how a failed KERNEL_CHECK ends the process.

#include "kernels/check.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast::kernels {

void CheckFailed(const char* file, int line, const char* condition,
                 const std::string& message) {
  std::fprintf(stderr, "%s:%d: our own bug: KERNEL_CHECK(%s): %s\n", file, line,
               condition, message.c_str());
  std::abort();
}

}  // namespace holdfast::kernels
