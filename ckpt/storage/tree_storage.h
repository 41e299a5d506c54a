// ckpt/storage/tree_storage.h: the calls that the POSIX and the io_uring
// backend answer in the same way: everything but Write, Read, Sync and Poll.
//
// They do their work inside the call, on a PosixTree. Thread: the owner's.

#ifndef HOLDFAST_CKPT_STORAGE_TREE_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_TREE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ckpt/storage/answers.h"
#include "ckpt/storage/file_table.h"
#include "ckpt/storage/posix_tree.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class TreeStorage : public Storage {
 public:
  // `open_flags` are added to those of open(2) for Create and Open; a file that
  // refuses to be opened with O_DIRECT is opened without.
  TreeStorage(PosixTree tree, size_t queue_depth, size_t files_max,
              int open_flags);

  const StorageTraits& traits() const override { return traits_; }
  size_t queue_depth() const override { return answers_.queue_depth(); }
  void Create(std::string_view name, FileId file, uint64_t size_expected,
              OpTag tag) override;
  void OpenForWrite(std::string_view name, FileId file, OpTag tag) override;
  void Open(std::string_view name, FileId file, OpTag tag) override;
  void Close(FileId file, OpTag tag) override;
  void MakeDir(std::string_view name, OpTag tag) override;
  void SyncDir(std::string_view name, OpTag tag) override;
  void Rename(std::string_view from, std::string_view to, OpTag tag) override;
  void List(std::string_view dir, std::vector<DirEntry>* entries,
            OpTag tag) override;
  void Remove(std::string_view name, OpTag tag) override;
  void FreeSpace(std::string_view dir, OpTag tag) override;
  void PutIfAbsent(std::string_view name, std::span<const std::byte> contents,
                   OpTag tag) override;
  void Get(std::string_view name, uint64_t size_max,
           std::vector<std::byte>* contents, OpTag tag) override;

 protected:
  PosixTree tree_;
  StorageTraits traits_;
  Answers answers_;
  FileTable files_;

 private:
  void OpenExisting(std::string_view name, FileId file, bool for_write,
                    OpTag tag);

  int open_flags_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_TREE_STORAGE_H_
