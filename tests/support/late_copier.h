// tests/support/late_copier.h: a device in ordinary memory whose copies run
// when the test says so, and take what the memory holds at that moment.

#ifndef HOLDFAST_TESTS_SUPPORT_LATE_COPIER_H_
#define HOLDFAST_TESTS_SUPPORT_LATE_COPIER_H_

#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/snapshot/async_copier.h"

namespace holdfast::tests {

class LateCopier final : public ckpt::AsyncCopier {
 public:
  explicit LateCopier(std::vector<std::span<std::byte>> regions)
      : regions_(std::move(regions)) {}

  absl::StatusOr<std::span<std::byte>> TakeMemory(uint64_t bytes) override {
    if (bytes > bytes_max_) return absl::ResourceExhaustedError("no more");
    memory_ = ckpt::AlignedBuffer(bytes);
    return memory_.span();
  }
  void Fix() override { ++fixed_; }
  uint64_t CopyOut(uint32_t region, uint64_t offset,
                   std::span<std::byte> to) override {
    return Begin({regions_[region].data() + offset, to.data(), to.size()});
  }
  uint64_t CopyIn(uint32_t region, uint64_t offset,
                  std::span<const std::byte> from) override {
    return Begin({from.data(), regions_[region].data() + offset, from.size()});
  }
  // By itself one copy runs whenever somebody asks.
  bool Passed(uint64_t event) override {
    const std::lock_guard lock(lock_);
    if (by_itself_ && status_.ok()) Run();
    return event <= done_ || !status_.ok();
  }
  void Await(uint64_t event) override {
    const std::lock_guard lock(lock_);
    while (event > done_ && status_.ok()) Run();
  }
  absl::Status status() override {
    const std::lock_guard lock(lock_);
    return status_;
  }

  void RunOne() {
    const std::lock_guard lock(lock_);
    Run();
  }
  void RunAll() {
    const std::lock_guard lock(lock_);
    while (done_ < copies_.size()) Run();
  }
  void RunByItself(bool on = true) {
    const std::lock_guard lock(lock_);
    by_itself_ = on;
  }
  void Fail(absl::Status why) {
    const std::lock_guard lock(lock_);
    status_ = std::move(why);
  }
  // A kernel that stores into a region.
  void Store(uint32_t region, uint64_t offset, uint64_t bytes, int value) {
    const std::lock_guard lock(lock_);
    std::memset(regions_[region].data() + offset, value, bytes);
  }
  void LimitMemory(uint64_t bytes_max) { bytes_max_ = bytes_max; }

  int fixed() const { return fixed_; }
  uint64_t begun() {
    const std::lock_guard lock(lock_);
    return copies_.size();
  }

 private:
  struct Copy {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  uint64_t Begin(Copy copy) {
    const std::lock_guard lock(lock_);
    copies_.push_back(copy);
    return copies_.size();
  }
  void Run() {
    if (done_ == copies_.size()) return;
    const Copy& copy = copies_[done_++];
    std::memcpy(copy.to, copy.from, copy.bytes);
  }

  const std::vector<std::span<std::byte>> regions_;
  ckpt::AlignedBuffer memory_;
  uint64_t bytes_max_ = ~uint64_t{0};
  bool by_itself_ = false;
  int fixed_ = 0;
  std::mutex lock_;  // guards all below
  std::vector<Copy> copies_;
  uint64_t done_ = 0;
  absl::Status status_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_LATE_COPIER_H_
