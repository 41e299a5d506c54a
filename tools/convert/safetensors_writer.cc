// tools/convert/safetensors_writer.cc: exclusive creates, syncs, one rename.

#include "tools/convert/safetensors_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "tools/common/text.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/safetensors_directory.h"

namespace holdfast::tools {
namespace {

absl::Status Failed(const char* doing, const std::string& path) {
  const int error = errno;
  const std::string message =
      absl::StrFormat("%s %s: %s", doing, path, std::strerror(error));
  switch (error) {
    case EEXIST:
    case ENOTEMPTY:
      return absl::FailedPreconditionError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// Whether a directory in the making may hold it.
bool IsOurs(const std::string& name) {
  return name == "config.json" || name == kSafetensorsIndex ||
         (absl::StartsWith(name, "model") &&
          absl::EndsWith(name, ".safetensors"));
}

// What an earlier attempt left. Anything that it cannot have made stays, and is
// said.
absl::Status RemoveFiles(int fd, const std::string& path) {
  ckpt::Fd copy(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy.valid()) return Failed("opening", path);
  DIR* const directory = ::fdopendir(copy.get());
  if (directory == nullptr) return Failed("listing", path);
  copy.Release();
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(directory)) {
    names.emplace_back(entry->d_name);
  }
  ::closedir(directory);
  std::erase_if(names, [](const std::string& name) {
    return name == "." || name == "..";
  });
  for (const std::string& name : names) {
    if (!IsOurs(name)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is where this is made, and holds '%s', which no export makes; "
          "move it away",
          path, name));
    }
  }
  for (const std::string& name : names) {
    if (::unlinkat(fd, name.c_str(), 0) != 0) {
      return Failed("removing", path + "/" + name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteAll(int fd, std::span<const std::byte> bytes,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return Failed("writing", path);
    }
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::StatusOr<PartialDirectory> PartialDirectory::Create(
    const std::string& out, uint64_t bytes) {
  std::filesystem::path wanted(out);
  if (!wanted.has_filename()) wanted = wanted.parent_path();  // "DIR/"
  const std::string name = wanted.filename();
  if (name.empty() || name == "." || name == "..") {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' names no directory to be made", out));
  }
  const std::string parent =
      wanted.has_parent_path() ? wanted.parent_path().string() : ".";
  PartialDirectory made;
  made.out_ = wanted;
  made.path_ = parent + "/." + name + ".partial";
  made.parent_ =
      ckpt::Fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made.parent_.valid()) return Failed("opening", parent);
  struct stat ignored;
  if (::lstat(made.out_.c_str(), &ignored) == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s exists already and is left as it is; name another", made.out_));
  }
  if (::mkdir(made.path_.c_str(), 0777) != 0 && errno != EEXIST) {
    return Failed("making", made.path_);
  }
  ckpt::Fd fd(::open(made.path_.c_str(),
                     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Failed("opening", made.path_);
  // Held until the descriptor is closed, also by a kill.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s is being written by another process", made.path_));
  }
  // Who held it may have renamed it to OUT just before.
  struct stat held, named;
  if (::fstat(fd.get(), &held) != 0 ||
      ::lstat(made.path_.c_str(), &named) != 0 || held.st_ino != named.st_ino ||
      held.st_dev != named.st_dev) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s was being written by another process", made.path_));
  }
  HF_RETURN_IF_ERROR(RemoveFiles(fd.get(), made.path_));
  made.fd_ = std::move(fd);  // from here on the destructor removes it
  struct statvfs space;
  if (::fstatvfs(made.fd_.get(), &space) != 0) {
    return Failed("looking at the space of", made.path_);
  }
  const double free =
      static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (free < static_cast<double>(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s needs %s in %s, where %s are free; nothing was written", made.out_,
        BytesText(static_cast<double>(bytes)), parent, BytesText(free)));
  }
  return made;
}

PartialDirectory::~PartialDirectory() {
  if (!fd_.valid()) return;
  if (RemoveFiles(fd_.get(), path_).ok()) ::rmdir(path_.c_str());
}

absl::StatusOr<ckpt::Fd> PartialDirectory::CreateFile(const std::string& name) {
  ckpt::Fd fd(::openat(fd_.get(), name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0666));
  if (!fd.valid()) return Failed("creating", path_ + "/" + name);
  return fd;
}

absl::Status PartialDirectory::WriteFile(const std::string& name,
                                         std::string_view text) {
  HF_ASSIGN_OR_RETURN(const ckpt::Fd fd, CreateFile(name));
  HF_RETURN_IF_ERROR(
      WriteAll(fd.get(), std::as_bytes(std::span(text)), path_ + "/" + name));
  if (::fsync(fd.get()) != 0) return Failed("syncing", path_ + "/" + name);
  return absl::OkStatus();
}

absl::Status PartialDirectory::Publish() {
  if (::fsync(fd_.get()) != 0) return Failed("syncing", path_);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out_.c_str(),
                  RENAME_NOREPLACE) != 0) {
    // Some file systems have no such rename; then a plain one, which replaces
    // an empty directory at most.
    if (errno != EINVAL && errno != ENOSYS) return Failed("renaming to", out_);
    if (::rename(path_.c_str(), out_.c_str()) != 0) {
      return Failed("renaming to", out_);
    }
  }
  fd_.Reset();
  if (::fsync(parent_.get()) != 0) return Failed("syncing what holds", out_);
  return absl::OkStatus();
}

std::vector<std::vector<SafeTensor>> CutIntoFiles(
    std::span<const SafeTensor> tensors, uint64_t file_bytes_max) {
  std::vector<std::vector<SafeTensor>> files;
  uint64_t bytes = 0;
  for (const SafeTensor& tensor : tensors) {
    if (files.empty() ||
        (!files.back().empty() &&
         tensor.bytes > file_bytes_max - std::min(bytes, file_bytes_max))) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += tensor.bytes;
  }
  return files;
}

std::string SafetensorsFileName(size_t index, size_t count) {
  if (count == 1) return kSafetensorsFile;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

absl::StatusOr<std::vector<std::string>> WriteSafetensors(
    PartialDirectory& directory, const SafetensorsToWrite& what) {
  const auto files = CutIntoFiles(what.tensors, what.file_bytes_max);
  uint64_t longest = 0;
  for (const SafeTensor& tensor : what.tensors) {
    longest = std::max(longest, tensor.bytes);
  }
  ckpt::AlignedBuffer piece(std::min(kPieceBytes, longest));
  std::vector<std::string> names;
  nlohmann::ordered_json weight_map;
  uint64_t done = 0;
  size_t tensor = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = SafetensorsFileName(i, files.size());
    const std::string path = directory.path() + "/" + name;
    HF_ASSIGN_OR_RETURN(const ckpt::Fd fd, directory.CreateFile(name));
    HF_RETURN_IF_ERROR(WriteAll(
        fd.get(), EncodeSafetensorsHeader(files[i], what.metadata), path));
    for (const SafeTensor& written : files[i]) {
      weight_map[written.name] = name;
      for (uint64_t at = 0; at < written.bytes;) {
        const uint64_t now = std::min(kPieceBytes, written.bytes - at);
        const std::span<std::byte> part = piece.span().first(now);
        HF_RETURN_IF_ERROR(what.fill(tensor, at, part));
        HF_RETURN_IF_ERROR(WriteAll(fd.get(), part, path));
        // The kernel starts to write now, or the sync has all of it to do.
        ::sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
        at += now;
        done += now;
        if (what.on_progress) what.on_progress(done);
      }
      ++tensor;
    }
    if (::fsync(fd.get()) != 0) return Failed("syncing", path);
    names.push_back(name);
  }
  if (files.size() > 1) {
    nlohmann::ordered_json index;
    index["metadata"] = {{"total_size", done}};
    index["weight_map"] = std::move(weight_map);
    HF_RETURN_IF_ERROR(
        directory.WriteFile(kSafetensorsIndex, index.dump(2) + "\n"));
    names.emplace_back(kSafetensorsIndex);
  }
  return names;
}

}  // namespace holdfast::tools
