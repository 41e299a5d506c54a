// ckpt/storage/blocking.h: one Storage call at a time, waited for, for tools
// and tests that have nothing else to do.
//
// Thread: the Storage's owner. No other call is unanswered meanwhile (CHECK).

#ifndef HOLDFAST_CKPT_STORAGE_BLOCKING_H_
#define HOLDFAST_CKPT_STORAGE_BLOCKING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class Blocking {
 public:
  // With `polls_max` above 0 a call that is unanswered after so many Polls is
  // kDeadlineExceeded, and this object must not be used again: its arguments
  // may still be in use. For simulated processes that die.
  explicit Blocking(Storage& storage, int64_t polls_max = 0)
      : storage_(storage), polls_max_(polls_max) {}

  absl::Status Create(std::string_view name, FileId file,
                      uint64_t size_expected = 0);
  absl::StatusOr<uint64_t> OpenForWrite(std::string_view name, FileId file);
  absl::Status Write(FileId file, uint64_t offset,
                     std::span<const std::byte> data);
  absl::Status Sync(FileId file);
  absl::Status Close(FileId file);
  absl::StatusOr<uint64_t> Open(std::string_view name, FileId file);
  absl::StatusOr<uint64_t> Read(FileId file, uint64_t offset,
                                std::span<std::byte> out);
  absl::Status MakeDir(std::string_view name);
  absl::Status SyncDir(std::string_view name);
  absl::Status Rename(std::string_view from, std::string_view to);
  absl::StatusOr<std::vector<DirEntry>> List(std::string_view dir);
  absl::Status Remove(std::string_view name);
  absl::StatusOr<uint64_t> FreeSpace(std::string_view dir);
  absl::Status PutIfAbsent(std::string_view name,
                           std::span<const std::byte> contents);
  absl::StatusOr<std::vector<std::byte>> Get(std::string_view name,
                                             uint64_t size_max);

 private:
  Completion Await(OpTag tag);
  OpTag NextTag() { return OpTag{++last_tag_}; }

  Storage& storage_;
  int64_t polls_max_;
  uint64_t last_tag_ = uint64_t{1} << 63;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_BLOCKING_H_
