// ckpt/base/check.cc: how a broken invariant ends the process.

#include "ckpt/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast::ckpt {

void CheckFailed(const char* file, int line, const char* condition,
                 const std::string& message) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s: %s\n", file, line, condition,
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace holdfast::ckpt
