// ckpt/storage/posix_storage.cc: pwrite(2), pread(2) and fsync(2) inside the
// call.

#include "ckpt/storage/posix_storage.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/answers.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/file_table.h"
#include "ckpt/storage/names.h"
#include "ckpt/storage/posix_tree.h"

namespace holdfast::ckpt {
namespace {

class PosixStorage final : public Storage {
 public:
  PosixStorage(PosixTree tree, const PosixOptions& options)
      : tree_(std::move(tree)),
        answers_(options.queue_depth),
        files_(options.files_max),
        files_max_(options.files_max) {
    traits_.name = "posix";
  }

  const StorageTraits& traits() const override { return traits_; }
  size_t queue_depth() const override { return answers_.queue_depth(); }
  void RegisterBuffers(std::span<const std::span<std::byte>>) override {}

  void Create(std::string_view name, FileId file, uint64_t size_expected,
              OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    if (files_.full()) {
      answers_.Finish(tag, TooManyFiles(files_max_, tree_.PathOf(name)));
      return;
    }
    absl::StatusOr<Fd> fd = tree_.CreateFile(name, size_expected, 0);
    if (fd.ok()) {
      OpenFile& slot = files_.Add(file);
      slot.fd = *std::move(fd);
      slot.path = tree_.PathOf(name);
      slot.writable = true;
      slot.size = size_expected;
    }
    answers_.Finish(tag, fd.status());
  }

  void Write(FileId file, uint64_t offset, std::span<const std::byte> data,
             OpTag tag) override {
    CheckAligned(data.data(), offset, data.size());
    answers_.Begin();
    OpenFile& slot = files_.GetForWriting(file);
    if (!slot.poisoned.ok()) {
      answers_.Finish(tag, PoisonedStatus(slot, "write"));
      return;
    }
    slot.poisoned = WriteAll(slot, offset, data);
    if (!slot.poisoned.ok()) {
      answers_.Finish(tag, slot.poisoned);
      return;
    }
    slot.written_end = std::max(slot.written_end, offset + data.size());
    slot.size = std::max(slot.size, slot.written_end);
    answers_.Finish(tag, absl::OkStatus(), data.size());
  }

  void Sync(FileId file, OpTag tag) override {
    answers_.Begin();
    OpenFile& slot = files_.GetForWriting(file);
    if (!slot.poisoned.ok()) {
      answers_.Finish(tag, PoisonedStatus(slot, "sync"));
      return;
    }
    slot.poisoned = CutToWritten(slot);
    if (slot.poisoned.ok()) slot.poisoned = SyncFile(slot);
    answers_.Finish(tag, slot.poisoned);
  }

  void Close(FileId file, OpTag tag) override {
    answers_.Begin();
    OpenFile& slot = files_.Get(file);
    absl::Status status;
    if (!slot.poisoned.ok()) status = PoisonedStatus(slot, "close");
    files_.Release(slot);
    answers_.Finish(tag, std::move(status));
  }

  void Open(std::string_view name, FileId file, OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    if (files_.full()) {
      answers_.Finish(tag, TooManyFiles(files_max_, tree_.PathOf(name)));
      return;
    }
    absl::StatusOr<PosixTree::Opened> opened = tree_.OpenFile(name, 0);
    uint64_t size = 0;
    if (opened.ok()) {
      OpenFile& slot = files_.Add(file);
      slot.fd = std::move(opened->fd);
      slot.path = tree_.PathOf(name);
      slot.size = size = opened->size;
    }
    answers_.Finish(tag, opened.status(), size);
  }

  void Read(FileId file, uint64_t offset, std::span<std::byte> out,
            OpTag tag) override {
    CheckAligned(out.data(), offset, out.size());
    answers_.Begin();
    const OpenFile& slot = files_.GetForReading(file);
    size_t real = 0;
    absl::Status status = CheckReadRange(slot, offset, out.size(), &real);
    if (status.ok()) status = ReadAll(slot, offset, out.first(real));
    if (status.ok()) std::memset(out.data() + real, 0, out.size() - real);
    const bool ok = status.ok();
    answers_.Finish(tag, std::move(status), ok ? real : 0);
  }

  void MakeDir(std::string_view name, OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    answers_.Finish(tag, tree_.MakeDir(name));
  }

  void SyncDir(std::string_view name, OpTag tag) override {
    CheckDirName(name);
    answers_.Begin();
    answers_.Finish(tag, tree_.SyncDir(name));
  }

  void Rename(std::string_view from, std::string_view to, OpTag tag) override {
    CheckName(from);
    CheckName(to);
    answers_.Begin();
    answers_.Finish(tag, tree_.Rename(from, to));
  }

  void List(std::string_view dir, std::vector<DirEntry>* entries,
            OpTag tag) override {
    CheckDirName(dir);
    answers_.Begin();
    answers_.Finish(tag, tree_.List(dir, entries));
  }

  void Remove(std::string_view name, OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    answers_.Finish(tag, tree_.Remove(name));
  }

  void PutIfAbsent(std::string_view name, std::span<const std::byte> contents,
                   OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    answers_.Finish(tag, tree_.PutIfAbsent(name, contents));
  }

  void Get(std::string_view name, uint64_t size_max,
           std::vector<std::byte>* contents, OpTag tag) override {
    CheckName(name);
    answers_.Begin();
    answers_.Finish(tag, tree_.Get(name, size_max, contents));
  }

  size_t Poll(std::span<Completion> out) override { return answers_.Poll(out); }
  // Whatever was asked is already done, so without an answer there is nothing
  // to wait for but the time.
  void WaitForCompletion(int wait_ms) override {
    if (answers_.finished() == 0) ::poll(nullptr, 0, wait_ms);
  }

 private:
  static absl::Status WriteAll(const OpenFile& file, uint64_t offset,
                               std::span<const std::byte> data) {
    for (size_t done = 0; done < data.size();) {
      const ssize_t wrote =
          ::pwrite(file.fd.get(), data.data() + done, data.size() - done,
                   static_cast<off_t>(offset + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        return TransferError(wrote < 0 ? errno : EIO, "write", file,
                             offset + done, data.size() - done);
      }
      done += static_cast<size_t>(wrote);
    }
    return absl::OkStatus();
  }

  static absl::Status ReadAll(const OpenFile& file, uint64_t offset,
                              std::span<std::byte> out) {
    for (size_t done = 0; done < out.size();) {
      const ssize_t got =
          ::pread(file.fd.get(), out.data() + done, out.size() - done,
                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return TransferError(errno, "read", file, offset + done,
                             out.size() - done);
      }
      if (got == 0) return ShrankStatus(file, offset + done);
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  static absl::Status SyncFile(const OpenFile& file) {
    int result;
    do {
      result = ::fsync(file.fd.get());
    } while (result != 0 && errno == EINTR);
    if (result != 0) return ErrnoStatus(errno, "sync", file.path);
    return absl::OkStatus();
  }

  PosixTree tree_;
  StorageTraits traits_;
  Answers answers_;
  FileTable files_;
  size_t files_max_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(
    const PosixOptions& options) {
  HF_CHECK(options.queue_depth > 0 && options.files_max > 0,
           "queue depth %d, %d files", options.queue_depth, options.files_max);
  HF_ASSIGN_OR_RETURN(PosixTree tree, PosixTree::Open(options.root));
  return std::make_unique<PosixStorage>(std::move(tree), options);
}

}  // namespace holdfast::ckpt
