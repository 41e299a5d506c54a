// ckpt/storage/errno_status.h: the one place where an errno becomes a Status.
// Pure; any thread.

#ifndef HOLDFAST_CKPT_STORAGE_ERRNO_STATUS_H_
#define HOLDFAST_CKPT_STORAGE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace holdfast::ckpt {

// The code that storage.h gives to `error` (an errno, positive).
absl::StatusCode CodeOfErrno(int error);

// "write /run/x, offset 4096, 8192 bytes: No space left on device (ENOSPC)".
// `doing` is the operation, `what` its object.
absl::Status ErrnoStatus(int error, std::string_view doing,
                         std::string_view what);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_ERRNO_STATUS_H_
