// tools/convert/partial_directory.cc: see partial_directory.h.

#include "tools/convert/partial_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/sync_dir.h"
#include "ckpt/storage/errno_status.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/out_file.h"

namespace holdfast::tools {
namespace {

using ckpt::ErrnoStatus;

// What an earlier attempt left. Anything that it cannot have made stays, and is
// said.
absl::Status RemoveFiles(int fd, const std::string& path,
                         PartialDirectory::IsOurs is_ours) {
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(fd, path));
  for (const std::string& name : names) {
    if (!is_ours(name)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is where this is made, and holds '%s', which no export makes; "
          "move it away",
          path, name));
    }
  }
  for (const std::string& name : names) {
    if (::unlinkat(fd, name.c_str(), 0) != 0) {
      return ErrnoStatus(errno, "removing", path + "/" + name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PartialDirectory> PartialDirectory::Create(
    const std::string& out, uint64_t bytes, IsOurs is_ours) {
  HF_ASSIGN_OR_RETURN(PartialPlace opened, PartialPlace::Open(out));
  PartialDirectory made(std::move(opened), is_ours);
  const PartialPlace& place = made.place_;
  if (::mkdirat(place.parent(), place.temporary().c_str(), 0777) != 0 &&
      errno != EEXIST) {
    return ErrnoStatus(errno, "making", place.path());
  }
  ckpt::Fd fd(::openat(place.parent(), place.temporary().c_str(),
                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening", place.path());
  HF_ASSIGN_OR_RETURN(const bool is_there, place.Lock(fd.get()));
  if (!is_there) return place.IsBeingWritten();
  HF_RETURN_IF_ERROR(RemoveFiles(fd.get(), place.path(), is_ours));
  made.fd_ = std::move(fd);  // from here on the destructor removes it
  HF_RETURN_IF_ERROR(place.CheckSpace(bytes));
  return made;
}

PartialDirectory::~PartialDirectory() {
  if (!fd_.valid()) return;
  if (RemoveFiles(fd_.get(), path(), is_ours_).ok()) {
    ::unlinkat(place_.parent(), place_.temporary().c_str(), AT_REMOVEDIR);
  }
}

absl::StatusOr<ckpt::Fd> PartialDirectory::CreateFile(const std::string& name) {
  ckpt::Fd fd(::openat(fd_.get(), name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0666));
  if (!fd.valid()) return ErrnoStatus(errno, "creating", path() + "/" + name);
  return fd;
}

absl::Status PartialDirectory::WriteFile(const std::string& name,
                                         std::string_view text) {
  const std::string file = path() + "/" + name;
  HF_ASSIGN_OR_RETURN(const ckpt::Fd fd, CreateFile(name));
  HF_RETURN_IF_ERROR(
      WriteAllAt(fd.get(), 0, std::as_bytes(std::span(text)), file));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, "syncing", file);
  return absl::OkStatus();
}

absl::Status PartialDirectory::Publish() {
  const int error = ckpt::SyncDirFd(fd_.get());
  if (error != 0) return ErrnoStatus(error, "syncing", path());
  return place_.PublishDirectory(fd_);
}

}  // namespace holdfast::tools
