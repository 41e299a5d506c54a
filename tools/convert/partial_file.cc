// tools/convert/partial_file.cc: see partial_file.h.

#include "tools/convert/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::tools {
namespace {

using ckpt::ErrnoStatus;

// Whether a file in the making may look so.
bool MayBeOurs(int fd, std::string_view signature) {
  struct stat status;
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::string begin(signature.size(), '\0');
  const ssize_t got = ::pread(fd, begin.data(), begin.size(), 0);
  if (got < 0) return false;
  begin.resize(static_cast<size_t>(got));
  return begin == signature || begin.find_first_not_of('\0') == begin.npos;
}

}  // namespace

absl::StatusOr<PartialFile> PartialFile::Create(const std::string& out,
                                                uint64_t bytes,
                                                std::string_view signature) {
  HF_ASSIGN_OR_RETURN(PartialPlace opened, PartialPlace::Open(out));
  PartialFile file(std::move(opened));
  const PartialPlace& place = file.place_;
  const char* const temporary = place.temporary().c_str();
  constexpr int kTries = 10;
  for (int tries = 0; tries < kTries; ++tries) {
    ckpt::Fd fd(::openat(place.parent(), temporary,
                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0666));
    if (fd.valid()) {
      // Another one may have taken it for a leftover in between.
      HF_ASSIGN_OR_RETURN(const bool is_ours, place.Lock(fd.get()));
      if (!is_ours) continue;
      file.fd_ = std::move(fd);
      HF_RETURN_IF_ERROR(place.CheckSpace(bytes));
      return file;
    }
    if (errno != EEXIST) return ErrnoStatus(errno, "making", place.path());
    const ckpt::Fd old(::openat(place.parent(), temporary,
                                O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!old.valid() && errno == ENOENT) continue;
    if (!old.valid()) return ErrnoStatus(errno, "opening", place.path());
    HF_ASSIGN_OR_RETURN(const bool is_there, place.Lock(old.get()));
    if (!is_there) continue;
    if (!MayBeOurs(old.get(), signature)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is where this is made, and there is something that no export "
          "makes; move it away",
          place.path()));
    }
    if (::unlinkat(place.parent(), temporary, 0) != 0) {
      return ErrnoStatus(errno, "removing", place.path());
    }
  }
  return place.IsBeingWritten();
}

PartialFile::~PartialFile() {
  if (fd_.valid()) ::unlinkat(place_.parent(), place_.temporary().c_str(), 0);
}

absl::Status PartialFile::Publish() {
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, "syncing", path());
  return place_.PublishFile(fd_);
}

}  // namespace holdfast::tools
