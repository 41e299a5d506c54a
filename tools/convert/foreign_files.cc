// tools/convert/foreign_files.cc: openat without following links, and reads
// that are whole.

#include "tools/convert/foreign_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "tools/convert/dcp/regular_file.h"

namespace holdfast::tools {

using ckpt::ErrnoStatus;

absl::Status CheckForeignName(const std::string& name,
                              const std::string& named_in) {
  constexpr size_t kNameBytesMax = 255;
  if (!name.empty() && name.size() <= kNameBytesMax && name[0] != '.' &&
      name.find('/') == std::string::npos &&
      name.find('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s names the file '%s', which is no plain name of a file beside it",
      named_in, name.substr(0, kNameBytesMax)));
}

std::string ForeignFile::identity() const {
  return absl::StrFormat("%s %d %d", name_, bytes_, changed_ns_);
}

absl::Status ForeignFile::ReadAt(uint64_t offset,
                                 std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "reading", path_);
    }
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s ends at byte %d and had %d when it was opened: somebody changes "
          "it",
          path_, offset, bytes_));
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ForeignFile::ReadAll(uint64_t bytes_max) const {
  if (bytes_ > bytes_max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d bytes; at most %d are expected", path_, bytes_, bytes_max));
  }
  std::string text(bytes_, '\0');
  HF_RETURN_IF_ERROR(ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::StatusOr<ForeignDirectory> ForeignDirectory::Open(
    const std::string& path) {
  ForeignDirectory directory;
  directory.path_ = path;
  directory.fd_ =
      ckpt::Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.fd_.valid()) {
    if (errno == ENOTDIR) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is no directory", path));
    }
    return ErrnoStatus(errno, "opening", path);
  }
  return directory;
}

absl::StatusOr<ForeignFile> ForeignDirectory::OpenFile(
    const std::string& name) const {
  HF_RETURN_IF_ERROR(CheckForeignName(name, path_));
  HF_ASSIGN_OR_RETURN(RegularFile opened,
                      OpenRegularFile(fd_.get(), path_, name));
  ForeignFile file;
  file.fd_ = std::move(opened.fd);
  file.path_ = std::move(opened.path);
  file.name_ = name;
  file.bytes_ = opened.bytes;
  file.changed_ns_ = opened.changed_ns;
  return file;
}

bool ForeignDirectory::Has(const std::string& name) const {
  struct stat status;
  return ::fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

absl::StatusOr<std::vector<std::string>> NamesIn(int fd,
                                                 const std::string& path) {
  // A descriptor of its own: fdopendir moves and closes it.
  ckpt::Fd own(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own.valid()) return ErrnoStatus(errno, "opening", path);
  DIR* const directory = ::fdopendir(own.get());
  if (directory == nullptr) return ErrnoStatus(errno, "listing", path);
  own.Release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int error = errno;
  ::closedir(directory);
  if (error != 0) return ErrnoStatus(error, "listing", path);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace holdfast::tools
