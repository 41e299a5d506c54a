// tools/convert/partial_place.cc: a name beside the later one, a lock, a rename
// that replaces nothing.

#include "tools/convert/partial_place.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "ckpt/base/sync_dir.h"
#include "ckpt/storage/errno_status.h"
#include "tools/common/text.h"

namespace holdfast::tools {

using ckpt::ErrnoStatus;

absl::StatusOr<PartialPlace> PartialPlace::Open(const std::string& out) {
  std::filesystem::path wanted(out);
  if (!wanted.has_filename()) wanted = wanted.parent_path();  // "DIR/"
  PartialPlace place;
  place.out_ = wanted;
  place.name_ = wanted.filename();
  if (place.name_.empty() || place.name_ == "." || place.name_ == "..") {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' names nothing that could be made", out));
  }
  const std::string parent =
      wanted.has_parent_path() ? wanted.parent_path().string() : ".";
  place.temporary_ = "." + place.name_ + ".partial";
  place.path_ = parent + "/" + place.temporary_;
  place.parent_ =
      ckpt::Fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!place.parent_.valid()) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s cannot be made: %s is no directory; make it first", place.out_,
          parent));
    }
    return ErrnoStatus(errno, "opening", parent);
  }
  struct stat there;
  if (::fstatat(place.parent(), place.name_.c_str(), &there,
                AT_SYMLINK_NOFOLLOW) == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s exists already and is left as it is; name another", place.out_));
  }
  return place;
}

absl::Status PartialPlace::CheckSpace(uint64_t bytes) const {
  struct statvfs space;
  if (::fstatvfs(parent(), &space) != 0) {
    return ErrnoStatus(errno, "looking at the space for", out_);
  }
  const double free =
      static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (free >= static_cast<double>(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s needs %s, and %s are free there; nothing was written", out_,
      BytesText(static_cast<double>(bytes)), BytesText(free)));
}

absl::Status PartialPlace::IsBeingWritten() const {
  return absl::AlreadyExistsError(
      absl::StrFormat("%s is being written by another process", path_));
}

absl::StatusOr<bool> PartialPlace::Lock(int fd) const {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return IsBeingWritten();
    return ErrnoStatus(errno, "locking", path_);
  }
  struct stat held, named;
  return ::fstat(fd, &held) == 0 &&
         ::fstatat(parent(), temporary_.c_str(), &named, AT_SYMLINK_NOFOLLOW) ==
             0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

absl::Status PartialPlace::Publish(Rename without_flags, ckpt::Fd& held) const {
  int error = ::renameat2(parent(), temporary_.c_str(), parent(), name_.c_str(),
                          RENAME_NOREPLACE) == 0
                  ? 0
                  : errno;
  // How a file system says that it has no such rename.
  if (error == EINVAL || error == ENOSYS) {
    error = without_flags(parent(), temporary_.c_str(), name_.c_str());
  }
  if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has appeared meanwhile and is left as it is; name another", out_));
  }
  if (error != 0) return ErrnoStatus(error, "naming", out_);
  held.Reset();
  error = ckpt::SyncDirFd(parent());
  return error == 0 ? absl::OkStatus()
                    : ErrnoStatus(error, "syncing what holds", out_);
}

absl::Status PartialPlace::PublishFile(ckpt::Fd& held) const {
  // Two steps, which do not replace either.
  const Rename without_flags = [](int parent, const char* from,
                                  const char* to) {
    if (::linkat(parent, from, parent, to, 0) != 0) return errno;
    ::unlinkat(parent, from, 0);
    return 0;
  };
  return Publish(without_flags, held);
}

absl::Status PartialPlace::PublishDirectory(ckpt::Fd& held) const {
  // It replaces an empty directory at most.
  const Rename without_flags = [](int parent, const char* from,
                                  const char* to) {
    return ::renameat(parent, from, parent, to) == 0 ? 0 : errno;
  };
  return Publish(without_flags, held);
}

}  // namespace holdfast::tools
