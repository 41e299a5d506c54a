// ckpt/storage/file_table.h: the files that a backend has open, by FileId.
//
// Thread: the Storage's owner. Memory: fixed at construction but for the names,
// which are kept for error messages. Lookups walk the table, which is short.

#ifndef HOLDFAST_CKPT_STORAGE_FILE_TABLE_H_
#define HOLDFAST_CKPT_STORAGE_FILE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/check.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

struct OpenFile {
  bool in_use = false;
  FileId id{};
  Fd fd;
  std::string path;  // Whole, for messages.
  bool writable = false;
  bool others = false;            // OpenForWrite: somebody else created it.
  uint64_t size = 0;              // On disk; for a writable file, as reserved.
  uint64_t written_end = 0;       // End of the furthest answered Write.
  uint32_t in_flight = 0;         // Writes, Reads and Syncs under way...
  uint32_t writes_in_flight = 0;  // ...and the Writes among them.
  absl::Status poisoned;          // The first error of Write or Sync.
};

class FileTable {
 public:
  explicit FileTable(size_t files_max) : files_(files_max) {}

  bool full() const { return count_ == files_.size(); }
  size_t size() const { return files_.size(); }

  // CHECK-fails when `id` is taken or the table full().
  OpenFile& Add(FileId id) {
    OpenFile* free = nullptr;
    for (OpenFile& file : files_) {
      HF_CHECK(!file.in_use || file.id != id, "file id %d is in use by %s",
               static_cast<uint32_t>(id), file.path);
      if (!file.in_use && free == nullptr) free = &file;
    }
    HF_CHECK(free != nullptr, "all %d files are open", files_.size());
    ++count_;
    free->in_use = true;
    free->id = id;
    return *free;
  }

  // CHECK-fails when no such file is open.
  OpenFile& Get(FileId id) {
    for (OpenFile& file : files_) {
      if (file.in_use && file.id == id) return file;
    }
    HF_CHECK(false, "file id %d is not open", static_cast<uint32_t>(id));
  }
  OpenFile& GetForWriting(FileId id) {
    OpenFile& file = Get(id);
    HF_CHECK(file.writable, "%s is open for reading", file.path);
    return file;
  }
  OpenFile& GetForReading(FileId id) {
    OpenFile& file = Get(id);
    HF_CHECK(!file.writable, "%s is open for writing", file.path);
    return file;
  }

  void Release(OpenFile& file) {
    HF_CHECK(file.in_flight == 0, "close of %s with %d calls under way",
             file.path, file.in_flight);
    file = OpenFile();
    --count_;
  }

 private:
  std::vector<OpenFile> files_;
  size_t count_ = 0;
};

// What a call on a poisoned file answers.
absl::Status PoisonedStatus(const OpenFile& file, std::string_view operation);

// Create and Open with a full table.
absl::Status TooManyFiles(size_t files_max, std::string_view path);

// `error` (an errno) of a transfer of `size` bytes at `offset`.
absl::Status TransferError(int error, std::string_view operation,
                           const OpenFile& file, uint64_t offset, size_t size);

// A file ends at `offset`, before the size that it had when it was opened.
absl::Status ShrankStatus(const OpenFile& file, uint64_t offset);

// How many bytes of a Read of `wanted` bytes at `offset` are real, into
// `*real`; kOutOfRange past the end.
absl::Status CheckReadRange(const OpenFile& file, uint64_t offset,
                            size_t wanted, size_t* real);

// Gives back what Create reserved beyond the furthest answered Write, so that
// the file ends there. Before each fsync. Nothing in a file that somebody else
// created.
absl::Status CutToWritten(OpenFile& file);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_FILE_TABLE_H_
