// trainer/data/mapped_file.cc: open, stat, mmap.

#include "trainer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace holdfast::trainer {
namespace {

absl::Status OpenFailed(const std::string& path, int error) {
  const std::string message =
      absl::StrFormat("opening %s: %s", path, std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return OpenFailed(path, errno);
  MappedFile file;
  file.path_ = path;
  absl::Status status;
  struct stat info;
  if (fstat(fd, &info) != 0) {
    status = OpenFailed(path, errno);
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(
        absl::StrFormat("opening %s: not a regular file", path));
  } else if (info.st_size > 0) {
    const auto size = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      status = OpenFailed(path, errno);
    } else {
      file.bytes_ = {static_cast<const std::byte*>(address), size};
    }
  }
  close(fd);  // Of a file that was only read: there is nothing to lose.
  if (!status.ok()) return status;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace holdfast::trainer
