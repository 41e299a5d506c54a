// ckpt/storage/errno_status.cc: the table from errno to the codes of storage.h.

#include "ckpt/storage/errno_status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case ELOOP:  // O_NOFOLLOW met a symbolic link.
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
      return absl::StatusCode::kFailedPrecondition;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:  // RLIMIT_FSIZE, or the file system's largest file.
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EMLINK:
      return absl::StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENAMETOOLONG:
    case EINVAL:
      return absl::StatusCode::kInvalidArgument;
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::StatusCode::kUnimplemented;
    default:  // EIO, ESTALE, ENXIO, ETIMEDOUT and whatever a server invents.
      return absl::StatusCode::kUnavailable;
  }
}

absl::Status ErrnoStatus(int error, std::string_view doing,
                         std::string_view what) {
  const char* const name = ::strerrorname_np(error);
  const char* const text = ::strerrordesc_np(error);
  return absl::Status(
      CodeOfErrno(error),
      absl::StrFormat("%s %s: %s (%s)", doing, what,
                      text == nullptr ? "unknown error" : text,
                      name == nullptr ? absl::StrFormat("errno %d", error)
                                      : std::string(name)));
}

}  // namespace holdfast::ckpt
