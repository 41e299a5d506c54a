// ckpt/storage/answers.h: the finished calls that a backend has not yet told.
//
// Thread: the Storage's owner. Memory: fixed at construction.

#ifndef HOLDFAST_CKPT_STORAGE_ANSWERS_H_
#define HOLDFAST_CKPT_STORAGE_ANSWERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/check.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class Answers {
 public:
  explicit Answers(size_t queue_depth) : ring_(queue_depth) {}

  // A call begins. CHECK-fails when queue_depth calls are unanswered.
  void Begin() {
    HF_CHECK(unanswered_ < ring_.size(),
             "%d calls are unanswered, which is the queue depth", unanswered_);
    ++unanswered_;
  }

  // A begun call is over.
  void Finish(OpTag tag, absl::Status status, uint64_t bytes = 0) {
    HF_CHECK(finished_ < unanswered_, "more answers than calls");
    ring_[(first_ + finished_) % ring_.size()] = {tag, std::move(status),
                                                  bytes};
    ++finished_;
  }

  size_t Poll(std::span<Completion> out) {
    const size_t count = std::min(out.size(), finished_);
    for (size_t i = 0; i < count; ++i) {
      out[i] = std::move(ring_[first_]);
      first_ = (first_ + 1) % ring_.size();
    }
    finished_ -= count;
    unanswered_ -= count;
    return count;
  }

  size_t queue_depth() const { return ring_.size(); }
  size_t unanswered() const { return unanswered_; }
  size_t finished() const { return finished_; }

 private:
  std::vector<Completion> ring_;
  size_t first_ = 0;
  size_t finished_ = 0;
  size_t unanswered_ = 0;  // Finished ones included.
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_ANSWERS_H_
