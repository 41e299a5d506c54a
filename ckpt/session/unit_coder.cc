// ckpt/session/unit_coder.cc: see unit_coder.h.

#include "ckpt/session/unit_coder.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/start_thread.h"

namespace holdfast::ckpt {
namespace {

// A queue of fixed size.
template <typename Value>
class Ring {
 public:
  explicit Ring(size_t size) : values_(size) {}
  bool empty() const { return count_ == 0; }
  void Push(const Value& value) {
    HF_CHECK(count_ < values_.size(), "more than %d jobs are unanswered",
             values_.size());
    values_[(first_ + count_++) % values_.size()] = value;
  }
  Value Pop() {
    const Value value = values_[first_];
    first_ = (first_ + 1) % values_.size();
    --count_;
    return value;
  }
  size_t Clear() { return std::exchange(count_, 0); }

 private:
  std::vector<Value> values_;
  size_t first_ = 0;
  size_t count_ = 0;
};

UnitCoder::Answer Code(ZstdEncoder& encoder, const UnitCoder::Job& job) {
  return {job.unit, CodeUnit(encoder, job.plain, job.planes, job.out)};
}

class InlineCoder final : public UnitCoder {
 public:
  InlineCoder(int level, size_t plain_max, size_t jobs_max)
      : encoder_(level, plain_max), jobs_(jobs_max) {}

  void Submit(const Job& job) override { jobs_.Push(job); }
  std::optional<Answer> Poll() override {
    if (jobs_.empty()) return std::nullopt;
    return Code(encoder_, jobs_.Pop());
  }
  size_t Drop() override { return jobs_.Clear(); }
  bool eager() const override { return !jobs_.empty(); }

 private:
  ZstdEncoder encoder_;
  Ring<Job> jobs_;
};

class ThreadCoder final : public UnitCoder {
 public:
  ThreadCoder(int level, size_t plain_max, size_t jobs_max, int threads)
      : jobs_(jobs_max), answers_(jobs_max) {
    encoders_.reserve(threads);
    for (int i = 0; i < threads; ++i) encoders_.emplace_back(level, plain_max);
    for (int i = 0; i < threads; ++i) {
      absl::StatusOr<std::thread> started =
          StartThread("a codec", [this, i] { Run(encoders_[i]); });
      if (!started.ok()) {
        HF_LOG_WARNING("%s Of %d threads %d compress",
                       std::string(started.status().message()), threads, i);
        break;
      }
      threads_.push_back(*std::move(started));
    }
  }
  // None: the system refuses them.
  bool has_threads() const { return !threads_.empty(); }
  ~ThreadCoder() override {
    {
      const std::lock_guard lock(lock_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const Job& job) override {
    {
      const std::lock_guard lock(lock_);
      jobs_.Push(job);
    }
    work_.notify_one();
  }
  std::optional<Answer> Poll() override {
    const std::lock_guard lock(lock_);
    if (answers_.empty()) return std::nullopt;
    return answers_.Pop();
  }
  size_t Drop() override {
    const std::lock_guard lock(lock_);
    return jobs_.Clear();
  }
  bool eager() const override { return false; }

 private:
  void Run(ZstdEncoder& encoder) {
    std::unique_lock lock(lock_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      const Job job = jobs_.Pop();
      lock.unlock();
      const Answer answer = Code(encoder, job);
      lock.lock();
      answers_.Push(answer);
    }
  }

  // The standard library's lock, because ThreadSanitizer does not see through
  // the packaged absl::Mutex.
  std::mutex lock_;  // guards all below but encoders_ and threads_
  std::condition_variable work_;
  Ring<Job> jobs_;
  Ring<Answer> answers_;
  bool stop_ = false;

  std::vector<ZstdEncoder> encoders_;  // one a thread
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<UnitCoder> MakeUnitCoder(int level, size_t plain_max,
                                         size_t jobs_max, int threads) {
  if (threads == 0) {
    return std::make_unique<InlineCoder>(level, plain_max, jobs_max);
  }
  auto coder =
      std::make_unique<ThreadCoder>(level, plain_max, jobs_max, threads);
  if (coder->has_threads()) return coder;
  return std::make_unique<InlineCoder>(level, plain_max, jobs_max);
}

}  // namespace holdfast::ckpt
