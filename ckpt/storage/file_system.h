// ckpt/storage/file_system.h: which file system a path lies on, and its space.
//
// Any thread; one system call. Decides nothing: what works is asked by trying
// (storage_probe.h).

#ifndef HOLDFAST_CKPT_STORAGE_FILE_SYSTEM_H_
#define HOLDFAST_CKPT_STORAGE_FILE_SYSTEM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace holdfast::ckpt {

struct FileSystemInfo {
  std::string type;         // "ext4", "tmpfs", "nfs", or the number it has
  uint64_t bytes_free = 0;  // that we may still use
  uint64_t bytes_total = 0;
  bool in_memory = false;  // gone after a power cut
  bool network = false;    // other machines may write there too
};

// kNotFound, kPermissionDenied: there is no such path for us.
absl::StatusOr<FileSystemInfo> LookAtFileSystem(const std::string& path);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_FILE_SYSTEM_H_
