// ckpt/storage/tree_storage.cc: one call, one function of PosixTree, one
// answer.

#include "ckpt/storage/tree_storage.h"

#include <fcntl.h>

#include <utility>

#include "ckpt/storage/names.h"

namespace holdfast::ckpt {

TreeStorage::TreeStorage(PosixTree tree, size_t queue_depth, size_t files_max,
                         int open_flags)
    : tree_(std::move(tree)),
      answers_(queue_depth),
      files_(files_max),
      open_flags_(open_flags) {}

void TreeStorage::Create(std::string_view name, FileId file,
                         uint64_t size_expected, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  if (files_.full()) {
    answers_.Finish(tag, TooManyFiles(files_.size(), tree_.PathOf(name)));
    return;
  }
  absl::StatusOr<Fd> fd = tree_.CreateFile(name, size_expected, open_flags_);
  // EINVAL is how open(2) refuses O_DIRECT, after it has made the name. The
  // root was asked at open; directories on the way may lie elsewhere.
  if (absl::IsInvalidArgument(fd.status()) && open_flags_ != 0) {
    tree_.Remove(name).IgnoreError();  // the next Create tells
    fd = tree_.CreateFile(name, size_expected, open_flags_ & ~O_DIRECT);
  }
  if (fd.ok()) {
    OpenFile& slot = files_.Add(file);
    slot.fd = *std::move(fd);
    slot.path = tree_.PathOf(name);
    slot.writable = true;
    slot.size = size_expected;
  }
  answers_.Finish(tag, fd.status());
}

void TreeStorage::OpenForWrite(std::string_view name, FileId file, OpTag tag) {
  OpenExisting(name, file, /*for_write=*/true, tag);
}

void TreeStorage::Open(std::string_view name, FileId file, OpTag tag) {
  OpenExisting(name, file, /*for_write=*/false, tag);
}

void TreeStorage::OpenExisting(std::string_view name, FileId file,
                               bool for_write, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  if (files_.full()) {
    answers_.Finish(tag, TooManyFiles(files_.size(), tree_.PathOf(name)));
    return;
  }
  absl::StatusOr<PosixTree::Opened> opened =
      tree_.OpenFile(name, open_flags_, for_write);
  // EINVAL is how open(2) refuses O_DIRECT.
  if (absl::IsInvalidArgument(opened.status()) && open_flags_ != 0) {
    opened = tree_.OpenFile(name, open_flags_ & ~O_DIRECT, for_write);
  }
  uint64_t size = 0;
  if (opened.ok()) {
    OpenFile& slot = files_.Add(file);
    slot.fd = std::move(opened->fd);
    slot.path = tree_.PathOf(name);
    slot.writable = slot.others = for_write;
    slot.size = size = opened->size;
  }
  answers_.Finish(tag, opened.status(), size);
}

void TreeStorage::Close(FileId file, OpTag tag) {
  answers_.Begin();
  OpenFile& slot = files_.Get(file);
  absl::Status status;
  if (!slot.poisoned.ok()) status = PoisonedStatus(slot, "close");
  files_.Release(slot);
  answers_.Finish(tag, std::move(status));
}

void TreeStorage::MakeDir(std::string_view name, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  answers_.Finish(tag, tree_.MakeDir(name));
}

void TreeStorage::SyncDir(std::string_view name, OpTag tag) {
  CheckDirName(name);
  answers_.Begin();
  answers_.Finish(tag, tree_.SyncDir(name));
}

void TreeStorage::Rename(std::string_view from, std::string_view to,
                         OpTag tag) {
  CheckName(from);
  CheckName(to);
  answers_.Begin();
  answers_.Finish(tag, tree_.Rename(from, to));
}

void TreeStorage::List(std::string_view dir, std::vector<DirEntry>* entries,
                       OpTag tag) {
  CheckDirName(dir);
  answers_.Begin();
  answers_.Finish(tag, tree_.List(dir, entries));
}

void TreeStorage::Remove(std::string_view name, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  answers_.Finish(tag, tree_.Remove(name));
}

void TreeStorage::FreeSpace(std::string_view dir, OpTag tag) {
  CheckDirName(dir);
  answers_.Begin();
  const absl::StatusOr<uint64_t> bytes = tree_.FreeSpace(dir);
  answers_.Finish(tag, bytes.status(), bytes.ok() ? *bytes : 0);
}

void TreeStorage::PutIfAbsent(std::string_view name,
                              std::span<const std::byte> contents, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  answers_.Finish(tag, tree_.PutIfAbsent(name, contents));
}

void TreeStorage::Get(std::string_view name, uint64_t size_max,
                      std::vector<std::byte>* contents, OpTag tag) {
  CheckName(name);
  answers_.Begin();
  answers_.Finish(tag, tree_.Get(name, size_max, contents));
}

}  // namespace holdfast::ckpt
