// tests/support/sim_storage.h: one simulated process's Storage on a SimDisk.
//
// Nothing happens inside a call: each Poll advances some of the unanswered
// calls by one operation each, in an order that the seed draws, and answers
// some of those that are finished, in another. Once the process has been
// killed, or the power cut, no call has an effect and Poll answers nothing.
// Destroying it is the end of the process: writes in flight land in part. The
// memory of writes in flight must outlive that, or the kill or power cut
// before.
//
// What the contract leaves to the caller is checked here more strictly than
// elsewhere: a file is used only after its Create or Open was polled, and Sync
// covers only Writes whose answers were polled before it was called.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_STORAGE_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_STORAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/storage/storage.h"
#include "tests/support/sim_disk.h"

namespace holdfast::tests {

struct SimStorageOptions {
  // A number of its own for each process that lives at the same time; used
  // again when a process is restarted.
  int process = 0;
  size_t queue_depth = 64;
  // For SetDelay.
  const ckpt::Clock* clock = nullptr;
};

class SimStorage final : public ckpt::Storage {
 public:
  // The disk outlives this, and the process lives (again).
  SimStorage(SimDisk& disk, const SimStorageOptions& options);
  ~SimStorage() override;

  // Killed, or made before the last power cut: the simulated process is gone.
  bool dead() const { return !disk_.IsAlive(options_.process, era_); }

  // A slow disk: calls of this kind (kWrite, kSync, kPut, ...) that are made
  // from now on take effect no earlier than so long after they were made.
  void SetDelay(SimOp call, absl::Duration delay);

  const ckpt::StorageTraits& traits() const override { return traits_; }
  size_t queue_depth() const override { return options_.queue_depth; }
  void RegisterBuffers(std::span<const std::span<std::byte>>) override {}
  void Create(std::string_view name, ckpt::FileId file, uint64_t size_expected,
              ckpt::OpTag tag) override;
  void OpenForWrite(std::string_view name, ckpt::FileId file,
                    ckpt::OpTag tag) override;
  void Write(ckpt::FileId file, uint64_t offset,
             std::span<const std::byte> data, ckpt::OpTag tag) override;
  void Sync(ckpt::FileId file, ckpt::OpTag tag) override;
  void Close(ckpt::FileId file, ckpt::OpTag tag) override;
  void Open(std::string_view name, ckpt::FileId file, ckpt::OpTag tag) override;
  void Read(ckpt::FileId file, uint64_t offset, std::span<std::byte> out,
            ckpt::OpTag tag) override;
  void MakeDir(std::string_view name, ckpt::OpTag tag) override;
  void SyncDir(std::string_view name, ckpt::OpTag tag) override;
  void Rename(std::string_view from, std::string_view to,
              ckpt::OpTag tag) override;
  void List(std::string_view dir, std::vector<ckpt::DirEntry>* entries,
            ckpt::OpTag tag) override;
  void Remove(std::string_view name, ckpt::OpTag tag) override;
  void FreeSpace(std::string_view dir, ckpt::OpTag tag) override;
  void PutIfAbsent(std::string_view name, std::span<const std::byte> contents,
                   ckpt::OpTag tag) override;
  void Get(std::string_view name, uint64_t size_max,
           std::vector<std::byte>* contents, ckpt::OpTag tag) override;
  size_t Poll(std::span<ckpt::Completion> out) override;
  void WaitForCompletion(int) override {}

 private:
  struct File {
    std::string name;
    InodeId inode{};
    uint64_t size = 0;
    bool open = false;
    bool writable = false;
    bool others = false;  // Somebody else created it.
    int unanswered = 0;
    absl::Status poisoned;
    uint64_t end_seen = 0;           // Of the furthest Write that took effect.
    uint64_t end_answered = 0;       // Of the furthest polled Write.
    std::vector<uint64_t> answered;  // Polled Writes since the last Sync.
  };
  struct Call {
    SimOp kind{};
    ckpt::OpTag tag{};
    ckpt::FileId file{};
    std::string name;
    std::string to;
    uint64_t offset = 0;
    uint64_t size = 0;  // Expected, or at most.
    std::span<std::byte> out;
    std::vector<std::byte> contents;
    std::vector<ckpt::DirEntry>* entries = nullptr;
    std::vector<std::byte>* target = nullptr;
    absl::Duration due;
    std::vector<uint64_t> writes;  // The Write's own, or those to be synced.
    uint64_t end = 0;
    // PutIfAbsent's progress.
    int step = 0;
    std::string temp;
    InodeId temp_inode{};
    // The result.
    absl::Status status;
    uint64_t bytes = 0;
  };

  Call& Begin(SimOp kind, std::string_view name, ckpt::OpTag tag);
  File& OpenedFile(ckpt::FileId id, bool writable);
  // Advances by one operation; true when the call is finished.
  bool Step(Call& call);
  bool StepPut(Call& call);
  void StepWrite(Call& call);
  void StepSync(Call& call);
  void StepRead(Call& call);
  void StepGet(Call& call);
  // Asks the disk whether `op` happens. False: it does not; the call's status
  // is set, or the process has died.
  bool Happens(Call& call, SimOp op, std::string_view name);
  void OnAnswer(Call& call);
  void Die();

  SimDisk& disk_;
  SimStorageOptions options_;
  ckpt::StorageTraits traits_;
  uint64_t era_;
  uint64_t stream_;  // Unlike that of any other SimStorage on this disk.
  SimRandom random_;
  std::map<SimOp, absl::Duration> delays_;
  std::map<ckpt::FileId, File> files_;
  std::vector<std::unique_ptr<Call>> calls_;     // Not finished.
  std::vector<std::unique_ptr<Call>> finished_;  // Not polled.
  uint64_t temps_ = 0;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_STORAGE_H_
