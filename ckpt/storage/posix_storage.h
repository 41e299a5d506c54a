// ckpt/storage/posix_storage.h: Storage by plain system calls, slow and
// obvious: the reference for the other backends, and the one that works where
// io_uring is forbidden.
//
// Every call does its work at once, through the page cache, and may block on
// the device; only the answer waits for Poll. So nothing overlaps, and calls
// take effect in the order in which they were made.
//
// Thread: one owner. Limits: queue_depth unanswered calls, files_max open
// files; both tables are sized at open.

#ifndef HOLDFAST_CKPT_STORAGE_POSIX_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_POSIX_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

struct PosixOptions {
  std::string root;           // An existing directory.
  uint32_t queue_depth = 64;  // Unanswered calls.
  uint32_t files_max = 64;    // Files open at once.
};

// kNotFound, kFailedPrecondition: the root is not an existing directory.
absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(
    const PosixOptions& options);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_POSIX_STORAGE_H_
