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
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/file_table.h"
#include "ckpt/storage/names.h"
#include "ckpt/storage/posix_tree.h"
#include "ckpt/storage/tree_storage.h"

namespace holdfast::ckpt {
namespace {

class PosixStorage final : public TreeStorage {
 public:
  PosixStorage(PosixTree tree, const PosixOptions& options)
      : TreeStorage(std::move(tree), options.queue_depth, options.files_max,
                    /*open_flags=*/0) {
    traits_.name = "posix";
  }

  void RegisterBuffers(std::span<const std::span<std::byte>>) override {}

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
