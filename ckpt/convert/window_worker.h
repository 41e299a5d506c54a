// ckpt/convert/window_worker.h: one thread's part of a conversion: windows of
// units are filled, digested, checksummed or coded, and written.
//
//   source --Fill--> memory of the window --> digest, crc (or a frame)
//                                         \-> write of each unit, at once
//
// A worker reads or writes; several of them do both at the same time, which is
// what keeps the disk busy in both directions.
//
// Memory: a window, with a codec a second one and an encoder. Thread: one.

#ifndef HOLDFAST_CKPT_CONVERT_WINDOW_WORKER_H_
#define HOLDFAST_CKPT_CONVERT_WINDOW_WORKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/state_source.h"
#include "ckpt/convert/target_dir.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/shard.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// What all workers of a conversion share. Outlives them.
struct ConvertShared {
  const ConvertPlan* plan = nullptr;
  const std::vector<ItemSpec>* items = nullptr;
  StateSource* source = nullptr;
  Clock* clock = nullptr;
  std::counting_semaphore<>* fills = nullptr;  // so many threads in Fill
  std::string checkpoint_dir;                  // in the storage
  Codec codec = Codec::kNone;
  int codec_level = 0;
  const std::atomic<bool>* stop = nullptr;  // may be null
  // By place in the plan's order; workers write those of their windows.
  std::vector<uint32_t> crcs;                    // without a codec
  std::vector<CodedUnit> units;                  // with one
  std::vector<std::atomic<uint64_t>> file_ends;  // with one: of what is stored
  std::atomic<uint64_t> bytes_done = 0;

  bool coded() const { return codec != Codec::kNone; }
  std::string PathOf(const std::string& name) const {
    return checkpoint_dir == "." ? name : checkpoint_dir + "/" + name;
  }
};

// kCancelled, in words.
absl::Status ConversionStopped();

// What a file has become, for the manifest.
struct FinishedFile {
  uint64_t bytes = 0;
  uint32_t crc_index = 0;
  uint64_t plain_bytes = 0;
};

class WindowWorker {
 public:
  WindowWorker(ConvertShared* shared, std::unique_ptr<Storage> storage,
               uint64_t window_bytes);

  // Fills, digests and writes the window; adds to `digests` by item.
  absl::Status Write(const WindowPlan& window,
                     std::map<ItemIndex, Digest128>* digests);
  // What the window has written is safe.
  absl::Status SyncAll();

  // Are the window's units in the files what they were when it was written?
  absl::StatusOr<bool> Verify(const WindowPlan& window);

  // Index and footer of one file. `entries`: by place in the file.
  absl::StatusOr<FinishedFile> Finish(uint32_t file,
                                      const ShardIdentity& identity,
                                      std::span<const size_t> places);

 private:
  // A file that is open for writing here, and was written since its last sync.
  struct OpenFile {
    FileId id{};
    bool dirty = false;
    uint64_t used = 0;
  };

  absl::StatusOr<FileId> OpenToWrite(uint32_t file);
  absl::Status CloseOne();
  absl::Status Fill(const WindowPlan& window);
  absl::Status WriteUnit(size_t place, std::span<std::byte> plain,
                         std::span<std::byte> out);
  // Waits until at most `left` writes are unanswered.
  absl::Status Drain(size_t left);
  void Take(const Completion& answer);
  absl::Status SyncAndClose(std::vector<uint32_t> files, bool close);
  bool stopped() const {
    return shared_->stop != nullptr &&
           shared_->stop->load(std::memory_order_relaxed);
  }

  ConvertShared* const shared_;
  const std::unique_ptr<Storage> storage_;
  AlignedBuffer window_;
  AlignedBuffer coded_;
  std::optional<ZstdEncoder> encoder_;
  std::map<uint32_t, OpenFile> open_;
  std::vector<uint32_t> free_ids_;
  uint64_t uses_ = 0;
  uint64_t last_tag_ = 0;
  size_t unanswered_ = 0;
  absl::Status failed_;  // of a write
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_WINDOW_WORKER_H_
