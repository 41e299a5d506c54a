// tools/convert/dcp/regular_file.cc: openat that follows no link and waits for
// no pipe.

#include "tools/convert/dcp/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::tools {

absl::StatusOr<RegularFile> OpenRegularFile(int directory,
                                            const std::string& directory_path,
                                            const std::string& name) {
  RegularFile file;
  file.path = directory_path + "/" + name;
  // Without O_NONBLOCK the open of a pipe waits for who writes into it.
  file.fd = ckpt::Fd(::openat(directory, name.c_str(),
                              O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.fd.valid()) {
    if (errno == ELOOP) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is a symbolic link, which is not followed; where you trust it, "
          "cp -rL %s COPY makes files of links",
          file.path, directory_path));
    }
    return ckpt::ErrnoStatus(errno, "opening", file.path);
  }
  struct stat status;
  if (::fstat(file.fd.get(), &status) != 0) {
    return ckpt::ErrnoStatus(errno, "looking at", file.path);
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not a regular file", file.path));
  }
  file.bytes = static_cast<uint64_t>(status.st_size);
  file.changed_ns =
      status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
  return file;
}

}  // namespace holdfast::tools
