// ckpt/storage/open_storage.cc: choosing a backend, and saying so once.

#include "ckpt/storage/open_storage.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/fault_spec.h"
#include "ckpt/storage/fault_storage.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/posix_storage.h"
#include "ckpt/storage/storage_probe.h"
#include "ckpt/storage/uring_storage.h"

namespace holdfast::ckpt {
namespace {

void SayOnce(LogLevel level, const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string>* const said = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(message).second) Log(level, message);
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

absl::StatusOr<std::unique_ptr<Storage>> OpenPosix(
    const StorageOptions& options, const std::string& path,
    const std::string& why) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                      OpenPosixStorage({.root = path,
                                        .queue_depth = options.queue_depth,
                                        .files_max = options.files_max}));
  SayOnce(LogLevel::kInfo,
          absl::StrFormat("storage %s: plain POSIX calls, %s", path, why));
  return storage;
}

absl::StatusOr<std::unique_ptr<Storage>> OpenBest(const StorageOptions& options,
                                                  const std::string& path) {
  if (options.backend == StorageBackend::kPosix) {
    return OpenPosix(options, path, "as asked");
  }
  UringOptions uring = {.root = path,
                        .queue_depth = options.queue_depth,
                        .files_max = options.files_max,
                        .direct_io = options.direct_io};
  std::string why_buffered = "as asked";
  if (options.direct_io) {
    const Fd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root.valid()) return ErrnoStatus(errno, "open the directory", path);
    const absl::Status direct = ProbeDirectIo(root.get());
    if (!direct.ok()) {
      uring.direct_io = false;
      why_buffered = "which is refused here: " + Text(direct);
    }
  }
  absl::StatusOr<std::unique_ptr<Storage>> storage = OpenUringStorage(uring);
  if (!storage.ok()) {
    if (options.backend == StorageBackend::kUring ||
        absl::IsNotFound(storage.status()) ||
        absl::IsFailedPrecondition(storage.status())) {
      return storage.status();
    }
    return OpenPosix(
        options, path,
        "since io_uring is refused here: " + Text(storage.status()));
  }
  SayOnce(LogLevel::kInfo,
          uring.direct_io
              ? absl::StrFormat("storage %s: io_uring with O_DIRECT, %d calls "
                                "in flight",
                                path, options.queue_depth)
              : absl::StrFormat("storage %s: io_uring without O_DIRECT, %s",
                                path, why_buffered));
  return storage;
}

}  // namespace

absl::StatusOr<StorageBackend> ParseStorageBackend(std::string_view text) {
  if (text == "auto") return StorageBackend::kAuto;
  if (text == "posix") return StorageBackend::kPosix;
  if (text == "io_uring") return StorageBackend::kUring;
  return absl::InvalidArgumentError(absl::StrFormat(
      "storage backend '%s': expected auto, posix or io_uring", text));
}

absl::StatusOr<std::string> PathOfLocation(std::string_view location) {
  // A scheme is letters, digits, '+', '-' and '.' before the first ':'.
  const size_t colon = location.find(':');
  const std::string_view scheme = location.substr(0, colon);
  const bool has_scheme =
      colon != std::string_view::npos && !scheme.empty() &&
      scheme.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyz"
          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") == std::string_view::npos;
  std::string_view path = location;
  if (has_scheme && scheme != "file") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "storage '%s': expected a path or file:PATH, found the scheme '%s', "
        "which this program has no backend for (a path that looks like this "
        "is written ./%s)",
        location, scheme, location));
  }
  if (has_scheme) {
    path.remove_prefix(colon + 1);
    if (path.starts_with("//")) {
      // file://HOST/PATH; no host but this one.
      path.remove_prefix(2);
      if (path.starts_with("localhost/")) path.remove_prefix(9);
      if (!path.starts_with('/')) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "storage '%s': expected file:///PATH, found a host", location));
      }
    }
  }
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("storage '%s': expected a path, found none", location));
  }
  return std::string(path);
}

absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(
    const StorageOptions& options) {
  HF_ASSIGN_OR_RETURN(const std::string path, PathOfLocation(options.location));
  const char* const from_environment = std::getenv("HOLDFAST_FAULT");
  const std::string spec = options.fault.value_or(
      from_environment == nullptr ? "" : from_environment);
  HF_ASSIGN_OR_RETURN(std::vector<StorageFault> faults,
                      ParseStorageFaults(spec));
  std::erase_if(faults, [&](const StorageFault& fault) {
    return fault.rank >= 0 && fault.rank != options.rank;
  });
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                      OpenBest(options, path));
  if (faults.empty()) return storage;
  SayOnce(LogLevel::kWarning,
          absl::StrFormat("storage %s: WILL FAIL ON PURPOSE: %s", path, spec));
  return std::make_unique<FaultStorage>(std::move(storage), std::move(faults),
                                        options.rank);
}

}  // namespace holdfast::ckpt
