// ckpt/storage/open_storage.h: from where the user points to the backend that
// works best there.
//
// io_uring with O_DIRECT if both work; without O_DIRECT where the file system
// refuses it; plain POSIX calls where io_uring is refused. One log line says
// which and why, once per place and process. Any thread; the Storage then
// belongs to the thread that uses it.

#ifndef HOLDFAST_CKPT_STORAGE_OPEN_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_OPEN_STORAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

enum class StorageBackend { kAuto, kPosix, kUring };

// "auto", "posix", "io_uring"; kInvalidArgument names the three.
absl::StatusOr<StorageBackend> ParseStorageBackend(std::string_view text);

struct StorageOptions {
  // A path, or "file:PATH"; an existing directory. Other schemes ("s3://...")
  // are refused by name.
  std::string location;
  // kPosix and kUring force one; kUring then fails where io_uring is refused.
  StorageBackend backend = StorageBackend::kAuto;
  uint32_t queue_depth = 64;  // Calls unanswered at once, 1 to 4096.
  uint32_t files_max = 64;    // Files open at once.
  bool direct_io = true;      // False: never O_DIRECT.
  // A fault for drills and tests, as fault_spec.h describes it; "" for none.
  // Not set: from the environment variable HOLDFAST_FAULT.
  std::optional<std::string> fault = std::nullopt;
  // For fault specifications that name a rank.
  int rank = 0;
};

// kInvalidArgument: a scheme that is not known, a malformed fault.
// kNotFound, kFailedPrecondition: not an existing directory.
absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(
    const StorageOptions& options);

// The path that `location` means; kInvalidArgument for another scheme.
absl::StatusOr<std::string> PathOfLocation(std::string_view location);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_OPEN_STORAGE_H_
