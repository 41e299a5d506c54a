// ckpt/storage/posix_tree.cc: open(2), linkat(2), renameat2(2) and fsync(2)
// under the rules of storage.h.

#include "ckpt/storage/posix_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/sync_dir.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/names.h"

namespace holdfast::ckpt {
namespace {

// Repeats a system call that a signal has interrupted.
template <typename Call>
auto Retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// 0, or the errno.
int WriteAll(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t wrote =
        Retry([&] { return ::write(fd, data.data(), data.size()); });
    if (wrote < 0) return errno;
    if (wrote == 0) return EIO;
    data = data.subspan(static_cast<size_t>(wrote));
  }
  return 0;
}

// A temporary file in `dir`, its name in `*name`. Processes on other hosts may
// share our process id; O_EXCL then sends us to the next number.
int CreateTemp(int dir, std::string* name) {
  static std::atomic<uint64_t> counter{0};
  for (int tries = 0; tries < 10000; ++tries) {
    *name = absl::StrFormat("%s%d.%d", kTempPrefix, ::getpid(), ++counter);
    const int fd = Retry([&] {
      return ::openat(dir, name->c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      0666);
    });
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace

absl::StatusOr<PosixTree> PosixTree::Open(const std::string& root,
                                          bool exclusive_rename) {
  Fd fd(Retry([&] {
    return ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }));
  if (!fd.valid()) return ErrnoStatus(errno, "open the directory", root);
  return PosixTree(std::move(fd), root, exclusive_rename);
}

std::string PosixTree::PathOf(std::string_view name) const {
  return absl::StrFormat("%s/%s", path_, name);
}

absl::Status PosixTree::Fail(int error, std::string_view doing,
                             std::string_view name) const {
  return ErrnoStatus(error, doing, PathOf(name));
}

absl::StatusOr<Fd> PosixTree::OpenDir(std::string_view name,
                                      std::string_view doing) {
  const std::string path(name);
  Fd fd(Retry([&] {
    return ::openat(root_.get(), path.c_str(),
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }));
  if (!fd.valid()) return Fail(errno, doing, name);
  return fd;
}

absl::StatusOr<Fd> PosixTree::CreateFile(std::string_view name,
                                         uint64_t size_expected, int flags) {
  const std::string path(name);
  Fd fd(Retry([&] {
    return ::openat(
        root_.get(), path.c_str(),
        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
  }));
  if (!fd.valid()) return Fail(errno, "create", name);
  if (size_expected == 0) return fd;
  const int reserved = Retry([&] {
    return ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size_expected));
  });
  // Where it is not known the writes extend the file one by one.
  if (reserved == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return fd;
  const int error = errno;
  ::unlinkat(root_.get(), path.c_str(), 0);
  struct statvfs fs = {};
  const bool known = ::fstatvfs(fd.get(), &fs) == 0;
  return ErrnoStatus(
      error, "reserve",
      known ? absl::StrFormat("%d bytes for %s (%d bytes are free)",
                              size_expected, PathOf(name),
                              uint64_t{fs.f_bavail} * fs.f_frsize)
            : absl::StrFormat("%d bytes for %s", size_expected, PathOf(name)));
}

absl::StatusOr<PosixTree::Opened> PosixTree::OpenFile(std::string_view name,
                                                      int flags,
                                                      bool for_write) {
  const std::string path(name);
  // O_NONBLOCK: a FIFO without a writer would hold the call for ever.
  Opened opened;
  opened.fd = Fd(Retry([&] {
    return ::openat(root_.get(), path.c_str(),
                    (for_write ? O_WRONLY : O_RDONLY) | O_NOFOLLOW |
                        O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
  }));
  const char* found = nullptr;
  struct stat st = {};
  if (!opened.fd.valid()) {
    if (errno != ELOOP && errno != ENXIO) return Fail(errno, "open", name);
    found = errno == ELOOP ? "a symbolic link" : "a socket or a device";
  } else if (::fstat(opened.fd.get(), &st) != 0) {
    return Fail(errno, "stat", name);
  } else if (!S_ISREG(st.st_mode)) {
    found = S_ISDIR(st.st_mode) ? "a directory" : "a special file";
  }
  if (found != nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "open %s: expected a regular file, found %s", PathOf(name), found));
  }
  opened.size = static_cast<uint64_t>(st.st_size);
  return opened;
}

absl::Status PosixTree::MakeDir(std::string_view name) {
  if (::mkdirat(root_.get(), std::string(name).c_str(), 0777) != 0) {
    return Fail(errno, "make directory", name);
  }
  return absl::OkStatus();
}

absl::Status PosixTree::SyncDir(std::string_view name) {
  HF_ASSIGN_OR_RETURN(const Fd fd, OpenDir(name, "open directory"));
  const int error = SyncDirFd(fd.get());
  return error == 0 ? absl::OkStatus() : Fail(error, "sync directory", name);
}

absl::Status PosixTree::Rename(std::string_view from, std::string_view to) {
  const std::string source(from);
  const std::string target(to);
  int error = EINVAL;
  if (exclusive_rename_) {
    error = ::renameat2(root_.get(), source.c_str(), root_.get(),
                        target.c_str(), RENAME_NOREPLACE) == 0
                ? 0
                : errno;
  }
  // EINVAL is how a file system says that it does not know the flag.
  if (error == EINVAL || error == ENOSYS) {
    return RenameInTwoSteps(source, target);
  }
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(error, "rename",
                     absl::StrFormat("%s to %s", PathOf(from), PathOf(target)));
}

// A file is linked and unlinked, which never replaces. A directory cannot be
// linked: its target is looked for first, and rename(2) itself refuses one that
// is not empty, so that at worst an empty directory made in between is lost.
absl::Status PosixTree::RenameInTwoSteps(const std::string& from,
                                         const std::string& to) {
  const auto fail = [&](int error) {
    return ErrnoStatus(error, "rename",
                       absl::StrFormat("%s to %s", PathOf(from), PathOf(to)));
  };
  struct stat st = {};
  if (::fstatat(root_.get(), from.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
    return fail(errno);
  }
  if (!S_ISDIR(st.st_mode)) {
    if (::linkat(root_.get(), from.c_str(), root_.get(), to.c_str(), 0) != 0) {
      return fail(errno);
    }
    if (::unlinkat(root_.get(), from.c_str(), 0) != 0) return fail(errno);
    return absl::OkStatus();
  }
  if (::fstatat(root_.get(), to.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) {
    return fail(EEXIST);
  }
  if (errno != ENOENT) return fail(errno);
  if (::renameat(root_.get(), from.c_str(), root_.get(), to.c_str()) != 0) {
    return fail(errno == ENOTEMPTY ? EEXIST : errno);
  }
  return absl::OkStatus();
}

absl::Status PosixTree::List(std::string_view dir,
                             std::vector<DirEntry>* entries) {
  entries->clear();
  HF_ASSIGN_OR_RETURN(Fd fd, OpenDir(dir, "list"));
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()),
                                                   ::closedir);
  if (stream == nullptr) return Fail(errno, "list", dir);
  const int dir_fd = fd.Release();  // The stream closes it.
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return Fail(errno, "list", dir);
      break;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == ".." || IsTempName(name)) continue;
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat st = {};
      if (::fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;  // Gone meanwhile.
        return Fail(errno, "list", dir);
      }
      is_directory = S_ISDIR(st.st_mode);
    }
    entries->push_back({std::string(name), is_directory});
  }
  std::sort(
      entries->begin(), entries->end(),
      [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
  return absl::OkStatus();
}

absl::Status PosixTree::Remove(std::string_view name) {
  const std::string path(name);
  if (::unlinkat(root_.get(), path.c_str(), 0) == 0) return absl::OkStatus();
  // POSIX says EPERM for a directory, Linux EISDIR.
  if (errno != EISDIR && errno != EPERM) return Fail(errno, "remove", name);
  const int error = errno;
  struct stat st = {};
  if (::fstatat(root_.get(), path.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISDIR(st.st_mode)) {
    return Fail(error, "remove", name);
  }
  return RemoveDir(path);
}

absl::StatusOr<uint64_t> PosixTree::FreeSpace(std::string_view dir) {
  HF_ASSIGN_OR_RETURN(const Fd fd, OpenDir(dir, "open directory"));
  struct statvfs fs = {};
  if (Retry([&] { return ::fstatvfs(fd.get(), &fs); }) != 0) {
    return Fail(errno, "ask for the free space of", dir);
  }
  return uint64_t{fs.f_bavail} * fs.f_frsize;
}

absl::Status PosixTree::RemoveDir(const std::string& name) {
  if (::unlinkat(root_.get(), name.c_str(), AT_REMOVEDIR) == 0) {
    return absl::OkStatus();
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    return Fail(errno, "remove directory", name);
  }
  // Leftovers of killed PutIfAbsents go with the directory, once nothing else
  // is in it. A PutIfAbsent that is alive finds its file gone and says so.
  HF_ASSIGN_OR_RETURN(Fd fd, OpenDir(name, "remove directory"));
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()),
                                                   ::closedir);
  if (stream == nullptr) return Fail(errno, "remove directory", name);
  const int dir_fd = fd.Release();
  std::vector<std::string> leftovers;
  while (const dirent* const entry = ::readdir(stream.get())) {
    const std::string_view part = entry->d_name;
    if (part == "." || part == "..") continue;
    if (!IsTempName(part)) return Fail(ENOTEMPTY, "remove directory", name);
    leftovers.emplace_back(part);
  }
  for (const std::string& leftover : leftovers) {
    if (::unlinkat(dir_fd, leftover.c_str(), 0) != 0 && errno != ENOENT) {
      return Fail(errno, "remove directory", name);
    }
  }
  if (::unlinkat(root_.get(), name.c_str(), AT_REMOVEDIR) != 0) {
    return Fail(errno == EEXIST ? ENOTEMPTY : errno, "remove directory", name);
  }
  return absl::OkStatus();
}

absl::Status PosixTree::PutIfAbsent(std::string_view name,
                                    std::span<const std::byte> contents) {
  const SplitName split = Split(name);
  HF_ASSIGN_OR_RETURN(const Fd dir, OpenDir(split.parent, "put a file in"));
  std::string temp;
  Fd fd(CreateTemp(dir.get(), &temp));
  if (!fd.valid()) return Fail(errno, "create a temporary file for", name);
  int error = WriteAll(fd.get(), contents);
  if (error == 0 && Retry([&] { return ::fsync(fd.get()); }) != 0) {
    error = errno;
  }
  const char* doing = "write";
  const bool is_linking = error == 0;
  if (is_linking) {
    doing = "link";
    if (::linkat(dir.get(), temp.c_str(), dir.get(), split.last.c_str(), 0) !=
        0) {
      error = errno;
      struct stat st = {};
      if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {
        // A file system without hard links.
        error = ::renameat2(dir.get(), temp.c_str(), dir.get(),
                            split.last.c_str(), RENAME_NOREPLACE) == 0
                    ? 0
                    : errno;
      } else if (::fstat(fd.get(), &st) == 0 && st.st_nlink == 2) {
        // NFS may lose the answer, ask again and hear that the name is taken:
        // by us, as the number of links says.
        error = 0;
      }
    }
  }
  // Should this fail, a hidden name stays behind until its directory goes.
  ::unlinkat(dir.get(), temp.c_str(), 0);
  if (error != 0) {
    absl::Status failed = Fail(error, doing, name);
    if (!is_linking || !absl::IsUnavailable(failed)) return failed;
    // A device or server that fails in the middle of this does not say whether
    // the name was made, and may make it later.
    return absl::UnknownError(absl::StrFormat("%s may exist or not: %s",
                                              PathOf(name), failed.message()));
  }
  if (error = SyncDirFd(dir.get()); error != 0) {
    return absl::UnknownError(absl::StrFormat(
        "%s exists, but may not survive a power cut: %s", PathOf(name),
        Fail(error, "sync directory", split.parent).message()));
  }
  return absl::OkStatus();
}

absl::Status PosixTree::Get(std::string_view name, uint64_t size_max,
                            std::vector<std::byte>* contents) {
  contents->clear();
  HF_ASSIGN_OR_RETURN(const Opened opened, OpenFile(name, 0));
  if (opened.size > size_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("read %s: it has %d bytes, at most %d are wanted",
                        PathOf(name), opened.size, size_max));
  }
  contents->resize(opened.size);
  for (size_t done = 0; done < contents->size();) {
    const ssize_t got = Retry([&] {
      return ::pread(opened.fd.get(), contents->data() + done,
                     contents->size() - done, static_cast<off_t>(done));
    });
    if (got < 0) return Fail(errno, "read", name);
    if (got == 0) {
      return absl::UnavailableError(
          absl::StrFormat("read %s: it shrank from %d to %d bytes meanwhile",
                          PathOf(name), contents->size(), done));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
