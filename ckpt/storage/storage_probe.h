// ckpt/storage/storage_probe.h: what a directory's file system and this kernel
// can do for a Storage.
//
// Any thread. Costs a few file operations and one directory sync.

#ifndef HOLDFAST_CKPT_STORAGE_STORAGE_PROBE_H_
#define HOLDFAST_CKPT_STORAGE_STORAGE_PROBE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::ckpt {

// OK: it works. Otherwise the status says what the system answered.
struct StorageProbe {
  absl::Status io_uring;
  absl::Status direct_io;
  absl::Status registered_buffers;  // 64 MiB of them.
  absl::Status huge_pages;          // For the memory that is written from.
  absl::Status directory_sync;
  absl::Status exclusive_create;
  absl::Status hard_link;         // PutIfAbsent by link(2).
  absl::Status exclusive_rename;  // RENAME_NOREPLACE.
};

// Tries each in `dir`, under temporary names that are removed again. An error
// only when `dir` cannot be written to at all.
absl::StatusOr<StorageProbe> ProbeStorage(const std::string& dir);

// Whether files in the directory `dir_fd` accept O_DIRECT writes of 4096 bytes.
// Leaves no name behind. OK also where nothing can be written and the question
// does not come up.
absl::Status ProbeDirectIo(int dir_fd);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_STORAGE_PROBE_H_
