// tools/convert/foreign_files.h: files in a directory of somebody else's
// making, opened so that neither a name inside one of them nor a link can lead
// out of the directory, or to anything but a file.
//
// Any thread; every call may block on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_FOREIGN_FILES_H_
#define HOLDFAST_TOOLS_CONVERT_FOREIGN_FILES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

// One part of a path, visible, and not long: "model.safetensors". What a file
// names another one by must be this. kInvalidArgument with `named_in`.
absl::Status CheckForeignName(const std::string& name,
                              const std::string& named_in);

// All names but "." and "..", sorted, in the directory that `fd` is open on.
absl::StatusOr<std::vector<std::string>> NamesIn(int fd,
                                                 const std::string& path);

class ForeignFile {
 public:
  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // Name, size and time of the last change, in one line.
  std::string identity() const;

  // Exactly these bytes. kInvalidArgument where the file has become shorter,
  // kUnavailable on an error of the disk.
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;
  // kInvalidArgument when there are more than `bytes_max`.
  absl::StatusOr<std::string> ReadAll(uint64_t bytes_max) const;

 private:
  friend class ForeignDirectory;
  ckpt::Fd fd_;
  std::string path_;
  std::string name_;
  uint64_t bytes_ = 0;
  int64_t changed_ns_ = 0;
};

class ForeignDirectory {
 public:
  // The path is the user's: links in it are followed. kNotFound, kUnavailable,
  // or kInvalidArgument for what is no directory.
  static absl::StatusOr<ForeignDirectory> Open(const std::string& path);

  const std::string& path() const { return path_; }

  // kNotFound; kInvalidArgument for a symbolic link, a device, a pipe or
  // another directory, and for a name that CheckForeignName refuses.
  absl::StatusOr<ForeignFile> OpenFile(const std::string& name) const;
  // Whether anything has this name.
  bool Has(const std::string& name) const;
  absl::StatusOr<std::vector<std::string>> Names() const {
    return NamesIn(fd_.get(), path_);
  }

 private:
  ckpt::Fd fd_;
  std::string path_;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_FOREIGN_FILES_H_
