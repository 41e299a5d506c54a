// kernels/cuda_host_block.h: a GPU's block of threads on the host, for tests.
//
// Runs the very code of a kernel (kernels/cuda_block.h), one thread of a phase
// after the other. What a GPU would forgive or hide, this shows: shared memory
// is a heap block of exactly the kernel's size (AddressSanitizer sees an
// overrun); shared memory and PerThread values start as garbage, anew for each
// block; and threads and blocks run in an order that the test picks, so that a
// result that depends on it differs between two runs.

#ifndef HOLDFAST_KERNELS_CUDA_HOST_BLOCK_H_
#define HOLDFAST_KERNELS_CUDA_HOST_BLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cuda_block.h"

namespace holdfast::kernels {

enum class HostOrder : uint8_t { kForward, kBackward };

class HostBlock {
 public:
  template <typename T>
  class Values {
   public:
    static_assert(std::is_trivially_copyable_v<T>);
    explicit Values(int threads) : values_(static_cast<size_t>(threads)) {
      std::memset(static_cast<void*>(values_.data()), 0xa5,
                  values_.size() * sizeof(T));
    }
    T& operator[](int thread) {
      return values_.at(static_cast<size_t>(thread));
    }
    const T& operator[](int thread) const {
      return values_.at(static_cast<size_t>(thread));
    }

   private:
    std::vector<T> values_;
  };

  HostBlock(int threads, int64_t index, int64_t count, size_t shared_bytes,
            HostOrder order)
      : threads_(threads),
        index_(index),
        count_(count),
        order_(order),
        // 16-byte aligned, and not rounded up.
        shared_(static_cast<std::byte*>(std::malloc(shared_bytes)),
                &std::free) {
    if (shared_bytes > 0) std::memset(shared_.get(), 0xa5, shared_bytes);
  }

  int threads() const { return threads_; }
  int64_t index() const { return index_; }
  int64_t count() const { return count_; }

  template <typename Body>
  void ForEach(const Body& body) const {
    if (order_ == HostOrder::kForward) {
      for (int thread = 0; thread < threads_; ++thread) body(thread);
    } else {
      for (int thread = threads_ - 1; thread >= 0; --thread) body(thread);
    }
  }
  template <typename Body>
  void ForEachOnly(const Body& body) const {
    ForEach(body);
  }

  template <typename T>
  Values<T> PerThread() const {
    return Values<T>(threads_);
  }

  template <typename T>
  T* shared(int offset = 0) const {
    return reinterpret_cast<T*>(shared_.get() + offset);
  }

  template <int kGroup, typename T, typename Op>
  void Reduce(Values<T>& values, const Op& op) const {
    static_assert(kGroup > 0 && (kGroup & (kGroup - 1)) == 0);
    constexpr int kInWarp = kGroup < kWarpThreads ? kGroup : kWarpThreads;
    ReduceLanes<kInWarp>(values, op);
    if constexpr (kGroup > kWarpThreads) {
      constexpr int kWarps = kGroup / kWarpThreads;
      std::vector<T> of_warp;
      for (int t = 0; t < threads_; t += kWarpThreads) {
        of_warp.push_back(values[t]);
      }
      for (int t = 0; t < threads_; ++t) {
        values[t] =
            of_warp.at(static_cast<size_t>(t / kGroup * kWarps + t % kWarps));
      }
      ReduceLanes<kWarps>(values, op);
    }
  }

 private:
  template <int kLanes, typename T, typename Op>
  void ReduceLanes(Values<T>& values, const Op& op) const {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const Values<T> before = values;
      for (int t = 0; t < threads_; ++t) {
        values[t] = op(before[t], before[t ^ offset]);
      }
    }
  }

  const int threads_;
  const int64_t index_;
  const int64_t count_;
  const HostOrder order_;
  const std::unique_ptr<std::byte, void (*)(void*)> shared_;
};

// What a launch of `blocks` blocks does, on the calling thread.
template <typename Kernel>
void RunOnHost(const Kernel& kernel, int64_t blocks,
               HostOrder order = HostOrder::kForward) {
  static_assert(Kernel::kThreads % kWarpThreads == 0);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t index = order == HostOrder::kForward ? i : blocks - 1 - i;
    HostBlock block(Kernel::kThreads, index, blocks, Kernel::kSharedBytes,
                    order);
    kernel(block);
  }
}

// For the Run functions of kernels/cuda_*.h.
struct HostRunner {
  HostOrder order = HostOrder::kForward;
  int64_t max_blocks = 32768;

  template <typename Kernel>
  void operator()(const Kernel& kernel, int64_t blocks) const {
    RunOnHost(kernel, std::min(blocks, max_blocks), order);
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_HOST_BLOCK_H_
