// tools/convert/partial_file.cc: see partial_file.h.

#include "tools/convert/partial_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/common/text.h"

namespace holdfast::tools {
namespace {

absl::Status Failed(const char* doing, const std::string& path, int error) {
  const std::string message =
      absl::StrFormat("%s %s: %s", doing, path, std::strerror(error));
  switch (error) {
    case EEXIST:
      return absl::FailedPreconditionError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
    case ENOTDIR:
      return absl::InvalidArgumentError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

absl::StatusOr<PartialFile> PartialFile::Create(const std::string& out,
                                                uint64_t bytes) {
  const std::filesystem::path path(out);
  PartialFile file;
  file.out_ = out;
  file.name_ = path.filename();
  if (file.name_.empty() || file.name_ == "." || file.name_ == "..") {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' names no file to be made", out));
  }
  const std::string parent =
      path.has_parent_path() ? path.parent_path().string() : ".";
  file.parent_ =
      ckpt::Fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.parent_.valid()) return Failed("opening", parent, errno);
  struct stat ignored;
  if (::fstatat(file.parent_.get(), file.name_.c_str(), &ignored,
                AT_SYMLINK_NOFOLLOW) == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s exists already and is left as it is; name another", out));
  }
  struct statvfs space;
  if (::fstatvfs(file.parent_.get(), &space) != 0) {
    return Failed("looking at the space of", parent, errno);
  }
  const double free =
      static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (free < static_cast<double>(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s needs %s in %s, where %s are free; nothing was written", out,
        BytesText(static_cast<double>(bytes)), parent, BytesText(free)));
  }
  file.temporary_ = "." + file.name_ + ".partial";
  file.path_ = parent + "/" + file.temporary_;
  const char* const temporary = file.temporary_.c_str();
  for (int tries = 0; tries < 10; ++tries) {
    ckpt::Fd fd(::openat(file.parent_.get(), temporary,
                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0666));
    if (fd.valid()) {
      // Held until the descriptor is closed, also by a kill.
      if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) break;
      file.fd_ = std::move(fd);
      return file;
    }
    if (errno != EEXIST) return Failed("making", file.path_, errno);
    const ckpt::Fd old(::openat(file.parent_.get(), temporary,
                                O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!old.valid() && errno == ENOENT) continue;
    if (!old.valid()) return Failed("opening", file.path_, errno);
    struct stat held = {};
    struct stat named = {};
    if (::flock(old.get(), LOCK_EX | LOCK_NB) != 0) break;
    // Whoever held it may have published it meanwhile, and another begun.
    if (::fstat(old.get(), &held) != 0 ||
        ::fstatat(file.parent_.get(), temporary, &named, AT_SYMLINK_NOFOLLOW) !=
            0 ||
        held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
      continue;
    }
    if (::unlinkat(file.parent_.get(), temporary, 0) != 0) {
      return Failed("removing", file.path_, errno);
    }
  }
  file.temporary_.clear();  // not ours
  return absl::AlreadyExistsError(
      absl::StrFormat("%s is being written by another process", file.path_));
}

PartialFile::~PartialFile() {
  if (fd_.valid() && !temporary_.empty()) {
    ::unlinkat(parent_.get(), temporary_.c_str(), 0);
  }
}

absl::Status PartialFile::Publish() {
  if (::fsync(fd_.get()) != 0) return Failed("syncing", out_, errno);
  int error = 0;
  if (::renameat2(parent_.get(), temporary_.c_str(), parent_.get(),
                  name_.c_str(), RENAME_NOREPLACE) != 0) {
    error = errno;
    // How a file system says that it has no such rename: then by two steps,
    // which do not replace either.
    if (error == EINVAL || error == ENOSYS) {
      error = ::linkat(parent_.get(), temporary_.c_str(), parent_.get(),
                       name_.c_str(), 0) == 0
                  ? 0
                  : errno;
      if (error == 0) ::unlinkat(parent_.get(), temporary_.c_str(), 0);
    }
  }
  if (error != 0) return Failed("naming", out_, error);
  temporary_.clear();
  fd_.Reset();
  if (::fsync(parent_.get()) != 0) {
    return Failed("syncing what holds", out_, errno);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::tools
