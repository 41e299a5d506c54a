// ckpt/storage/storage_probe.cc: asking by trying.

#include "ckpt/storage/storage_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/names.h"
#include "ckpt/storage/storage.h"
#include "ckpt/storage/uring_storage.h"

namespace holdfast::ckpt {
namespace {

// More than the 8 MiB that unprivileged processes may lock by default.
constexpr size_t kRegisteredBytes = size_t{64} << 20;

std::string TempName(std::string_view use) {
  return absl::StrFormat("%sprobe.%d.%s", kTempPrefix, ::getpid(), use);
}

absl::Status FromErrno(bool ok, std::string_view doing, std::string_view what) {
  return ok ? absl::OkStatus() : ErrnoStatus(errno, doing, what);
}

}  // namespace

absl::Status ProbeDirectIo(int dir_fd) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  Fd fd(::openat(dir_fd, ".", kFlags | O_TMPFILE, 0600));
  if (!fd.valid() && errno != EACCES && errno != EROFS) {
    // No nameless files here, or no O_DIRECT: a named file tells which. One
    // that refuses O_DIRECT may have been created all the same.
    const std::string name = TempName("direct");
    fd = Fd(::openat(dir_fd, name.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
    const int error = errno;
    ::unlinkat(dir_fd, name.c_str(), 0);
    errno = error;
  }
  if (!fd.valid()) {
    if (errno == EACCES || errno == EROFS) return absl::OkStatus();
    return ErrnoStatus(errno, "open", "a file with O_DIRECT");
  }
  const AlignedBuffer block(kStorageAlignment);
  const ssize_t wrote = ::pwrite(fd.get(), block.data(), block.size(), 0);
  if (wrote == static_cast<ssize_t>(block.size())) return absl::OkStatus();
  // A full disk is another trouble, which the first save will report.
  if (wrote >= 0 || errno == ENOSPC || errno == EDQUOT) return absl::OkStatus();
  return ErrnoStatus(errno, "write", "4096 bytes with O_DIRECT");
}

// The setting, "always [madvise] never" in the kernel's words.
absl::Status ProbeHugePages() {
  constexpr char kSetting[] = "/sys/kernel/mm/transparent_hugepage/enabled";
  const Fd file(::open(kSetting, O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  if (!file.valid() || ::read(file.get(), text, sizeof text - 1) <= 0) {
    return ErrnoStatus(errno, "read", kSetting);
  }
  if (std::strstr(text, "[never]") == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrFormat("%s says never; madvise is enough", kSetting));
}

absl::StatusOr<StorageProbe> ProbeStorage(const std::string& dir) {
  const Fd root(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, "open the directory", dir);
  const std::string a = TempName("a");
  const std::string b = TempName("b");
  const auto remove_both = [&] {
    ::unlinkat(root.get(), a.c_str(), 0);
    ::unlinkat(root.get(), b.c_str(), 0);
  };
  const auto create = [&](const std::string& name) {
    return Fd(::openat(root.get(), name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  };
  remove_both();
  if (!create(a).valid()) return ErrnoStatus(errno, "create a file in", dir);

  StorageProbe probe;
  probe.io_uring = ProbeUring();
  AlignedBuffer buffer(kRegisteredBytes);
  probe.registered_buffers = ProbeRegisteredBuffers(buffer.span());
  probe.huge_pages = ProbeHugePages();
  probe.direct_io = ProbeDirectIo(root.get());
  probe.directory_sync =
      FromErrno(::fsync(root.get()) == 0, "sync directory", dir);
  if (create(a).valid() || errno != EEXIST) {
    probe.exclusive_create = absl::UnimplementedError(absl::StrFormat(
        "create in %s: a second exclusive create of one name was not refused",
        dir));
  }
  if (!create(b).valid()) {
    remove_both();
    return ErrnoStatus(errno, "create a file in", dir);
  }
  if (::renameat2(root.get(), a.c_str(), root.get(), b.c_str(),
                  RENAME_NOREPLACE) == 0) {
    probe.exclusive_rename = absl::UnimplementedError(absl::StrFormat(
        "rename in %s: an existing file was replaced in spite of "
        "RENAME_NOREPLACE",
        dir));
  } else if (errno != EEXIST) {
    probe.exclusive_rename =
        ErrnoStatus(errno, "rename without replacing in", dir);
  }
  ::unlinkat(root.get(), b.c_str(), 0);
  probe.hard_link =
      FromErrno(::linkat(root.get(), a.c_str(), root.get(), b.c_str(), 0) == 0,
                "link in", dir);
  remove_both();
  return probe;
}

}  // namespace holdfast::ckpt
