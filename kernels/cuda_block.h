// kernels/cuda_block.h: a block of GPU threads, as phases that a host can run.
//
// A kernel of ours is a value with its arguments and a call operator, written
// once for both sides:
//
//   struct RowSums {
//     static constexpr int kThreads = 256;       // Of a block; whole warps.
//     static constexpr int kSharedBytes = 1024;  // Of a block; may be 0.
//     const float* x; float* sums; int64_t rows; ...
//
//     template <typename Block>
//     HF_HOST_DEVICE void operator()(Block& block) const {
//       for (int64_t row = block.index(); row < rows; row += block.count()) {
//         auto sum = block.template PerThread<float>();
//         block.ForEach([&](int thread) { sum[thread] = ...; });
//         block.template Reduce<kThreads>(sum, Plus{});
//         block.ForEach([&](int thread) { if (thread == 0) ... });
//       }
//     }
//   };
//
// A phase is block.ForEach(body): body(thread) once for each thread of the
// block, then a barrier. DeviceBlock runs body for the calling thread and
// synchronises; HostBlock (kernels/cuda_host_block.h) loops over the threads.
// Between phases code is the same for all threads: whatever differs lives in
// PerThread values or shared memory. A loop around phases runs the same number
// of times for all threads.
//
//   threads()             in this block, the kernel's kThreads
//   index(), count()      this block, and how many were launched: any number is
//                         right, since kernels stride over their work
//   ForEach(body)         a phase
//   ForEachOnly(body)     without the barrier: a phase that touches no shared
//                         memory, and no global memory that other threads of
//                         the block touch in the next one
//   PerThread<T>()        one T of each thread, across phases: values[thread].
//                         Registers where every index is known when compiled.
//                         Starts with no defined value
//   shared<T>(offset)     the block's shared memory from byte `offset`
//   Reduce<N>(values, op) every thread's value becomes that of its group of N
//                         neighbours (a power of two; above 32 a part of the
//                         block in whole warps). All threads of the block call.
//
// The order of Reduce is part of a kernel's bits, and the same on both sides:
// with N at most 32, thread i joins i ^ N/2, then i ^ N/4, ... i ^ 1; above,
// the warps are reduced so, and then their results in the same way. op(mine,
// theirs) commutes, so that all threads of a group get the same.

#ifndef HOLDFAST_KERNELS_CUDA_BLOCK_H_
#define HOLDFAST_KERNELS_CUDA_BLOCK_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

inline constexpr int kWarpThreads = 32;

// For Reduce.
struct Plus {
  template <typename T>
  HF_HOST_DEVICE T operator()(T mine, T theirs) const {
    return mine + theirs;
  }
};

// NaN if either is.
struct Maximum {
  template <typename T>
  HF_HOST_DEVICE T operator()(T mine, T theirs) const {
    return mine > theirs || mine != mine ? mine : theirs;
  }
};

#ifdef __CUDACC__

// What a kernel gets on a GPU. `shared` is 16-byte aligned.
class DeviceBlock {
 public:
  // One value of the calling thread; the index is for the host.
  template <typename T>
  class Values {
   public:
    __device__ __forceinline__ T& operator[](int) { return value_; }
    __device__ __forceinline__ const T& operator[](int) const { return value_; }

   private:
    T value_;
  };

  __device__ explicit DeviceBlock(std::byte* shared) : shared_(shared) {}

  HF_HOST_DEVICE int threads() const {
#ifdef __CUDA_ARCH__
    return static_cast<int>(blockDim.x);
#else
    return 0;
#endif
  }
  HF_HOST_DEVICE int64_t index() const {
#ifdef __CUDA_ARCH__
    return blockIdx.x;
#else
    return 0;
#endif
  }
  HF_HOST_DEVICE int64_t count() const {
#ifdef __CUDA_ARCH__
    return gridDim.x;
#else
    return 1;
#endif
  }

  template <typename Body>
  __device__ __forceinline__ void ForEach(const Body& body) const {
    body(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <typename Body>
  __device__ __forceinline__ void ForEachOnly(const Body& body) const {
    body(static_cast<int>(threadIdx.x));
  }

  template <typename T>
  __device__ __forceinline__ Values<T> PerThread() const {
    return Values<T>();
  }

  template <typename T>
  __device__ __forceinline__ T* shared(int offset = 0) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }

  template <int kGroup, typename T, typename Op>
  __device__ __forceinline__ void Reduce(Values<T>& values,
                                         const Op& op) const {
    static_assert(kGroup > 0 && (kGroup & (kGroup - 1)) == 0);
    constexpr int kInWarp = kGroup < kWarpThreads ? kGroup : kWarpThreads;
    T value = ReduceLanes<kInWarp>(values[0], op);
    if constexpr (kGroup > kWarpThreads) {
      constexpr int kWarps = kGroup / kWarpThreads;
      static_assert(kWarps <= kWarpThreads);
      __shared__ T of_warp[kWarpThreads];
      const int thread = static_cast<int>(threadIdx.x);
      if (thread % kWarpThreads == 0) of_warp[thread / kWarpThreads] = value;
      __syncthreads();
      value = of_warp[thread / kGroup * kWarps + thread % kWarps];
      value = ReduceLanes<kWarps>(value, op);
      __syncthreads();  // of_warp may be written again.
    }
    values[0] = value;
  }

 private:
  template <int kLanes, typename T, typename Op>
  __device__ static __forceinline__ T ReduceLanes(T value, const Op& op) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }

  std::byte* const shared_;
};

#endif  // __CUDACC__

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_BLOCK_H_
