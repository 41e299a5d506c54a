// tests/support/fiber_block.h: a block of GPU threads in which each thread is
// one: for what a loop over the threads cannot show.
//
// The kernel's call operator runs once per thread, each on a stack of its own
// (a fiber), as on a GPU. A thread runs on until a barrier or a shuffle stops
// it; a warp until a barrier stops all of it. So phases that lack a barrier
// between them see one thread far ahead of the others, and the answers of the
// two orders differ; a barrier that some threads do not reach, and a value that
// a thread takes from another one's PerThread, end the test.
//
// Costs some 0.1 ms for each block of 256 threads and 1 ms for each Reduce of
// it. For tests; not under ThreadSanitizer.

#ifndef HOLDFAST_TESTS_SUPPORT_FIBER_BLOCK_H_
#define HOLDFAST_TESTS_SUPPORT_FIBER_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "ckpt/base/check.h"
#include "kernels/cuda_host_block.h"

namespace holdfast::kernels {

// Runs a function on each thread of one block. Not for use from several OS
// threads at once.
class Fibers {
 public:
  explicit Fibers(int threads);
  ~Fibers();

  // Runs body(thread) on a fiber for each thread, to the end of all. Warps, and
  // the threads of a warp, take turns in `order`.
  void Run(const std::function<void(int)>& body, HostOrder order);

  // Called by the body. Return when all threads of the warp, or of the block,
  // have called.
  void SyncWarp(int thread);
  void SyncBlock(int thread);

  // 8 bytes of each thread, for shuffles.
  std::byte* exchange(int thread) { return exchange_.data() + thread * 8; }

 private:
  struct Fiber;
  enum class Stop : uint8_t { kReady, kWarp, kBlock, kDone };

  static void Enter(unsigned high, unsigned low);
  void Resume(Fiber& fiber);
  void Yield(Fiber& fiber, Stop stop);
  void RunWarp(int warp, HostOrder order);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::byte> exchange_;
  const std::function<void(int)>* body_ = nullptr;
};

// What a kernel gets: one thread's view of its block.
class FiberBlock {
 public:
  template <typename T>
  class Values {
   public:
    explicit Values(int thread) : thread_(thread) {
      std::memset(static_cast<void*>(&value_), 0xa5, sizeof(value_));
    }
    T& operator[](int thread) {
      HF_CHECK(thread == thread_, "thread %d takes a value of thread %d",
               thread_, thread);
      return value_;
    }
    const T& operator[](int thread) const {
      return const_cast<Values&>(*this)[thread];
    }

   private:
    const int thread_;
    T value_;
  };

  FiberBlock(Fibers* fibers, int thread, int threads, int64_t index,
             int64_t count, std::byte* shared)
      : fibers_(fibers),
        thread_(thread),
        threads_(threads),
        index_(index),
        count_(count),
        shared_(shared) {}

  int threads() const { return threads_; }
  int64_t index() const { return index_; }
  int64_t count() const { return count_; }

  template <typename Body>
  void ForEach(const Body& body) const {
    body(thread_);
    fibers_->SyncBlock(thread_);
  }
  template <typename Body>
  void ForEachOnly(const Body& body) const {
    body(thread_);
  }

  template <typename T>
  Values<T> PerThread() const {
    return Values<T>(thread_);
  }

  template <typename T>
  T* shared(int offset = 0) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }

  // As DeviceBlock does it, barriers included.
  template <int kGroup, typename T, typename Op>
  void Reduce(Values<T>& values, const Op& op) const {
    constexpr int kInWarp = kGroup < kWarpThreads ? kGroup : kWarpThreads;
    T value = ReduceLanes<kInWarp>(values[thread_], op);
    if constexpr (kGroup > kWarpThreads) {
      constexpr int kWarps = kGroup / kWarpThreads;
      // A warp's result stands with its first thread.
      Put(value);
      fibers_->SyncBlock(thread_);
      value =
          Get<T>((thread_ / kGroup * kWarps + thread_ % kWarps) * kWarpThreads);
      fibers_->SyncBlock(thread_);
      value = ReduceLanes<kWarps>(value, op);
    }
    values[thread_] = value;
  }

 private:
  template <typename T>
  void Put(const T& value) const {
    static_assert(sizeof(T) <= 8);
    std::memcpy(fibers_->exchange(thread_), &value, sizeof(value));
  }
  template <typename T>
  T Get(int thread) const {
    T value;
    std::memcpy(&value, fibers_->exchange(thread), sizeof(value));
    return value;
  }

  template <int kLanes, typename T, typename Op>
  T ReduceLanes(T value, const Op& op) const {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      Put(value);
      fibers_->SyncWarp(thread_);
      const T theirs = Get<T>(thread_ ^ offset);
      fibers_->SyncWarp(thread_);
      value = op(value, theirs);
    }
    return value;
  }

  Fibers* const fibers_;
  const int thread_;
  const int threads_;
  const int64_t index_;
  const int64_t count_;
  std::byte* const shared_;
};

// For the Run functions of kernels/cuda_*.h.
struct FiberRunner {
  HostOrder order = HostOrder::kForward;
  int64_t max_blocks = 32768;

  template <typename Kernel>
  void operator()(const Kernel& kernel, int64_t most) const {
    const int64_t blocks = std::min(most, max_blocks);
    Fibers fibers(Kernel::kThreads);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t index = order == HostOrder::kForward ? i : blocks - 1 - i;
      const std::unique_ptr<std::byte, void (*)(void*)> shared(
          static_cast<std::byte*>(std::malloc(Kernel::kSharedBytes)),
          &std::free);
      if (Kernel::kSharedBytes > 0) {
        std::memset(shared.get(), 0xa5, Kernel::kSharedBytes);
      }
      fibers.Run(
          [&](int thread) {
            FiberBlock block(&fibers, thread, Kernel::kThreads, index, blocks,
                             shared.get());
            kernel(block);
          },
          order);
    }
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_SUPPORT_FIBER_BLOCK_H_
