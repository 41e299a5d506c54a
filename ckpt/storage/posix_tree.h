// ckpt/storage/posix_tree.h: the names of a Storage as system calls below one
// directory; what the POSIX and the io_uring backend share.
//
// Every function does its work inside the call and may block on the device.
// Paths are resolved against the root's descriptor, so that the root may be
// renamed while it is in use. The last part of a file's name is never followed
// when it is a symbolic link; directories on the way are, because people put
// runs on other disks that way.
//
// Thread: any, one at a time. Names obey names.h (the caller has checked).

#ifndef HOLDFAST_CKPT_STORAGE_POSIX_TREE_H_
#define HOLDFAST_CKPT_STORAGE_POSIX_TREE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class PosixTree {
 public:
  // kNotFound, kFailedPrecondition: `root` is not an existing directory.
  // Without `exclusive_rename` Rename takes the way of file systems that lack
  // RENAME_NOREPLACE (NFS, Lustre), for tests.
  static absl::StatusOr<PosixTree> Open(const std::string& root,
                                        bool exclusive_rename = true);

  // A new file for writing. `flags` are added to those of open(2). Space is
  // reserved, and the size set, where the file system knows fallocate(2):
  // writes into a file of its final size need not take turns. A file that could
  // not get its space is removed again.
  absl::StatusOr<Fd> CreateFile(std::string_view name, uint64_t size_expected,
                                int flags);

  struct Opened {
    Fd fd;
    uint64_t size = 0;
  };
  absl::StatusOr<Opened> OpenFile(std::string_view name, int flags,
                                  bool for_write = false);

  absl::Status MakeDir(std::string_view name);
  absl::Status SyncDir(std::string_view name);
  absl::Status Rename(std::string_view from, std::string_view to);
  absl::Status List(std::string_view dir, std::vector<DirEntry>* entries);
  absl::Status Remove(std::string_view name);
  absl::StatusOr<uint64_t> FreeSpace(std::string_view dir);
  absl::Status PutIfAbsent(std::string_view name,
                           std::span<const std::byte> contents);
  absl::Status Get(std::string_view name, uint64_t size_max,
                   std::vector<std::byte>* contents);

  // The whole path, for messages.
  std::string PathOf(std::string_view name) const;

 private:
  PosixTree(Fd root, std::string path, bool exclusive_rename)
      : root_(std::move(root)),
        path_(std::move(path)),
        exclusive_rename_(exclusive_rename) {}

  absl::Status Fail(int error, std::string_view doing,
                    std::string_view name) const;
  absl::StatusOr<Fd> OpenDir(std::string_view name, std::string_view doing);
  absl::Status RenameInTwoSteps(const std::string& from, const std::string& to);
  absl::Status RemoveDir(const std::string& name);

  Fd root_;
  std::string path_;
  bool exclusive_rename_ = true;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_POSIX_TREE_H_
