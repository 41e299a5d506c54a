// ckpt/storage/uring_storage.h: Storage over one io_uring ring.
//
// Thread: owned by the checkpoint thread, which makes every call, the
//     destructor included. Nothing here is locked, because nothing is shared.
// Memory: the ring and the table of calls in flight are sized at open and never
//     grow. Write, Read, Sync and Poll allocate nothing; errors do.
// Limits: at most queue_depth() calls unanswered, files_max files open.
// Order:  the kernel may finish writes in any order. The one ordering promised
//     is Sync's, kept by holding it back until the file's writes have answered.
// Cost:   one system call for each Write, Read and Sync. Metadata calls are
//     plain system calls, made inside the call (tree_storage.h).
// End:    the destructor waits for transfers in flight, because the kernel may
//     still use their memory.
//
// <liburing.h> is included in uring_storage.cc and in raw_transfer.cc, which
// this is measured against.

#ifndef HOLDFAST_CKPT_STORAGE_URING_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_URING_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

struct UringOptions {
  std::string root;           // An existing directory.
  uint32_t queue_depth = 64;  // Unanswered calls, 1 to 4096.
  uint32_t files_max = 64;    // Files open at once.
  bool direct_io = true;      // O_DIRECT; off where it is refused.
};

// kUnimplemented, kPermissionDenied: the kernel has no io_uring, or policy
//     forbids it (containers often do). kResourceExhausted: the ring's few
//     pages are more than RLIMIT_MEMLOCK leaves. Callers fall back to
//     PosixStorage, and say so once in the log.
// kNotFound, kFailedPrecondition: the root is not an existing directory.
absl::StatusOr<std::unique_ptr<Storage>> OpenUringStorage(
    const UringOptions& options);

// Why OpenUringStorage would refuse here, or OK.
absl::Status ProbeUring();

// Whether io_uring takes this memory as a registered buffer, as saves and loads
// want. kResourceExhausted: `ulimit -l` is too low for it.
absl::Status ProbeRegisteredBuffers(std::span<std::byte> memory);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_URING_STORAGE_H_
