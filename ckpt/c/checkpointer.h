// ckpt/c/checkpointer.h: one rank's checkpointer as the C functions see it.
// Private to ckpt/c.
//
// In-place buffers are fragments of the caller's regions; staged ones of one
// more region, which is the library's own and mirrors them.
//
// Thread: the step thread.

#ifndef HOLDFAST_CKPT_C_CHECKPOINTER_H_
#define HOLDFAST_CKPT_C_CHECKPOINTER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/c/declared_layout.h"
#include "ckpt/c/options.h"
#include "ckpt/c/page_memory.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

class CCheckpointer {
 public:
  CCheckpointer(std::unique_ptr<Group> group, const COptions& options)
      : group_(std::move(group)), options_(options) {}
  ~CCheckpointer();

  // --- Before Open
  absl::StatusOr<uint32_t> AddItem(ItemSpec item);
  // kNotFound: there is no item of that number.
  absl::StatusOr<const ItemSpec*> Item(uint32_t item) const;
  absl::Status AddRegion(std::byte* memory, uint64_t bytes);
  // `part`, `first` and `count` were checked, or `count` is 0.
  absl::StatusOr<uint32_t> AddBuffer(uint32_t item, const Box& part,
                                     int64_t first, int64_t count,
                                     std::byte* memory, uint64_t memory_bytes,
                                     bool staged);
  absl::Status Open();

  // --- After
  absl::StatusOr<const LoadReport*> Load(const LoadRequest& request);
  absl::Status BeginSave(SaveRequest request);
  absl::Status BeforeWrite(uint32_t buffer, uint64_t offset, uint64_t bytes);
  // nullptr: none. It stays until the next.
  absl::StatusOr<const SaveReport*> TakeReport(
      std::optional<absl::Duration> wait);
  bool save_in_flight() const;
  absl::StatusOr<SaveCounters> counters() const;
  absl::Status Close();

  const std::optional<LoadReport>& loaded() const { return loaded_; }
  uint64_t arena_bytes() const {
    return checkpointer_ == nullptr ? 0 : checkpointer_->arena_bytes();
  }
  uint64_t staged_bytes() const { return staged_bytes_; }
  // Of the save whose report was taken last.
  double stage_seconds() const { return stage_seconds_; }

 private:
  // kRefused: loading has failed, and it may be closed.
  enum class Stage { kDeclaring, kOpen, kLoaded, kRefused, kClosed, kFailed };

  struct Region {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
  };
  struct Buffer {
    uint32_t item = 0;
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    bool staged = false;
    uint32_t region = 0;
    uint64_t offset = 0;
  };

  absl::Status Expect(Stage stage, const char* doing) const;
  std::string Describe(const Buffer& buffer) const;
  absl::Status Place(uint64_t memory_bytes, Buffer* buffer);
  absl::Status TakeRegion(const std::string& what, std::byte* memory,
                          uint64_t bytes);
  absl::Status OpenAll();
  absl::Status Allocate();
  void CopyStaged(bool out);

  Stage stage_ = Stage::kDeclaring;
  std::unique_ptr<Group> group_;
  const COptions options_;

  std::vector<ItemSpec> items_;
  std::map<std::pair<std::string, std::string>, uint32_t> item_numbers_;
  std::vector<Region> regions_;
  std::map<uintptr_t, uint32_t> regions_by_address_;
  // In-place buffers by address: what each is.
  std::map<uintptr_t, uint32_t> buffers_by_address_;
  std::vector<Buffer> buffers_;
  Holding holding_;  // the staged region last
  uint64_t staged_bytes_ = 0;
  PageMemory staging_;

  std::unique_ptr<Checkpointer> checkpointer_;
  std::optional<LoadReport> loaded_;
  std::optional<SaveReport> report_;
  int64_t last_step_ = 0;
  double stage_seconds_begun_ = 0;
  double stage_seconds_ = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_CHECKPOINTER_H_
