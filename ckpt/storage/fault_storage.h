// ckpt/storage/fault_storage.h: a real Storage that fails on purpose, as
// fault_spec.h says. For `holdfast drill` and end-to-end tests.
//
// Thread: the Storage's owner. Cost without a match: one comparison a call.
// Counts are of this Storage, from its construction on.

#ifndef HOLDFAST_CKPT_STORAGE_FAULT_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_FAULT_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/storage/fault_spec.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class FaultStorage final : public Storage {
 public:
  // Faults of other ranks than `rank` are left out. `clock` times delays.
  FaultStorage(std::unique_ptr<Storage> storage,
               std::vector<StorageFault> faults, int rank,
               const Clock& clock = RealClock());
  ~FaultStorage() override;

  // How many operations fault number `index` (of those kept) has matched.
  int64_t count(size_t index) const { return armed_[index].count; }

  const StorageTraits& traits() const override { return traits_; }
  size_t queue_depth() const override { return storage_->queue_depth(); }
  void RegisterBuffers(std::span<const std::span<std::byte>> buffers) override {
    storage_->RegisterBuffers(buffers);
    traits_.registered_buffers = storage_->traits().registered_buffers;
  }
  void Create(std::string_view name, FileId file, uint64_t size_expected,
              OpTag tag) override;
  void OpenForWrite(std::string_view name, FileId file, OpTag tag) override;
  void Write(FileId file, uint64_t offset, std::span<const std::byte> data,
             OpTag tag) override;
  void Sync(FileId file, OpTag tag) override;
  void Close(FileId file, OpTag tag) override;
  void Open(std::string_view name, FileId file, OpTag tag) override;
  void Read(FileId file, uint64_t offset, std::span<std::byte> out,
            OpTag tag) override;
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
  size_t Poll(std::span<Completion> out) override;
  void WaitForCompletion(int wait_ms) override;

 private:
  struct Armed {
    StorageFault fault;
    int64_t count = 0;
  };
  struct File {
    std::string name;
    absl::Status poisoned;  // By an injected error.
  };
  struct Late {
    absl::Duration due;
    std::function<void()> call;
  };

  // Counts a call as unanswered; those held here are not the backend's yet.
  void Begin();
  // Bytes of a file; empty for what has none.
  struct Extent {
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  // Counts the operation, and makes the call, later, or not at all. True: it
  // was or will be made.
  bool Meet(StorageOp op, const std::string& name, OpTag tag,
            std::function<void()> call, Extent extent);
  bool Meet(StorageOp op, const std::string& name, OpTag tag,
            std::function<void()> call) {
    return Meet(op, name, tag, std::move(call), Extent());
  }
  // The same for calls on an open file; an injected error of one that writes
  // poisons it.
  void MeetOnFile(StorageOp op, FileId file, OpTag tag,
                  std::function<void()> call, Extent extent);
  void MakeLateCalls();

  std::unique_ptr<Storage> storage_;
  StorageTraits traits_;
  std::vector<Armed> armed_;
  const Clock& clock_;
  std::map<FileId, File> files_;
  std::map<OpTag, FileId> opening_;  // Create, OpenForWrite, Open; unanswered.
  std::map<OpTag, absl::Status> closing_;  // Close of a poisoned file.
  struct After {
    StorageFault::Act act{};
    std::string what;  // Was done, for the log.
  };
  std::map<OpTag, After> after_;  // Killed or stopped when they are answered.
  std::vector<Late> late_;
  size_t unanswered_ = 0;
  std::vector<Completion> failed_;  // Injected errors, not yet polled.
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_FAULT_STORAGE_H_
