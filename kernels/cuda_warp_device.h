// kernels/cuda_warp_device.h: WarpBlock, Warp and PerLane on the device.
// Included by cuda_warp.h alone.

#ifndef HOLDFAST_KERNELS_CUDA_WARP_DEVICE_H_
#define HOLDFAST_KERNELS_CUDA_WARP_DEVICE_H_

#include <cstdint>

#include "kernels/bf16.h"

namespace holdfast::kernels {

template <typename T, int kCount>
class PerLane {
 public:
  __device__ __forceinline__ T& operator()(int /*lane*/, int i) {
    return values_[i];
  }
  __device__ __forceinline__ const T& operator()(int /*lane*/, int i) const {
    return values_[i];
  }

 private:
  T values_[kCount];
};

// Two floats rounded to Bf16, the first in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// 2^x within 2 units in the last place; 0 where the result would be subnormal.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float Log2(float x) { return log2f(x); }
// The larger; of a NaN and a number, the number.
__device__ __forceinline__ float LargerNumber(float x, float y) {
  return fmaxf(x, y);
}

class Warp {
 public:
  __device__ __forceinline__ Warp(unsigned char* shared)
      : shared_(shared),
        window_(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ __forceinline__ int index() const { return threadIdx.x / 32; }

  template <typename Body>
  __device__ __forceinline__ void ForEachLane(const Body& body) const {
    body(lane_);
  }

  __device__ __forceinline__ void Sync() const { __syncwarp(); }

  // The compiler computes anew what follows from the lane or from the result,
  // rather than keep it in registers from before.
  __device__ __forceinline__ int Forget(int value) const {
    asm volatile("" : "+r"(value));
    return value;
  }
  __device__ __forceinline__ void ForgetLane() {
    asm volatile("" : "+r"(lane_));
  }

  template <int kD, int kA, int kB>
  __device__ __forceinline__ void Multiply(PerLane<float, kD>& d, int d_at,
                                           const PerLane<uint32_t, kA>& a,
                                           int a_at,
                                           const PerLane<uint32_t, kB>& b,
                                           int b_at) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d(0, d_at)), "+f"(d(0, d_at + 1)), "+f"(d(0, d_at + 2)),
          "+f"(d(0, d_at + 3))
        : "r"(a(0, a_at)), "r"(a(0, a_at + 1)), "r"(a(0, a_at + 2)),
          "r"(a(0, a_at + 3)), "r"(b(0, b_at)), "r"(b(0, b_at + 1)));
  }

  template <bool kTranspose, int kTo, typename RowOfLane>
  __device__ __forceinline__ void LoadMatrices(
      PerLane<uint32_t, kTo>& to, int at, const RowOfLane& row_of_lane) const {
    const uint32_t address = window_ + row_of_lane(lane_);
    if constexpr (kTranspose) {
      asm volatile(
          "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, "
          "[%4];"
          : "=r"(to(0, at)), "=r"(to(0, at + 1)), "=r"(to(0, at + 2)),
            "=r"(to(0, at + 3))
          : "r"(address)
          : "memory");
    } else {
      asm volatile(
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
          : "=r"(to(0, at)), "=r"(to(0, at + 1)), "=r"(to(0, at + 2)),
            "=r"(to(0, at + 3))
          : "r"(address)
          : "memory");
    }
  }

  template <typename CopyOfLane>
  __device__ __forceinline__ void CopyInBackground(
      const CopyOfLane& copy_of_lane) const {
    const SharedCopy copy = copy_of_lane(lane_);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(window_ +
                                                                       copy.to),
                 "l"(__cvta_generic_to_global(copy.from)),
                 "r"(copy.valid ? 16 : 0)
                 : "memory");
  }

  template <typename CopyOfLane>
  __device__ __forceinline__ void CopyWordsInBackground(
      const CopyOfLane& copy_of_lane) const {
    const SharedCopy copy = copy_of_lane(lane_);
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(window_ + copy.to),
        "l"(__cvta_generic_to_global(copy.from)), "r"(copy.valid ? 4 : 0)
        : "memory");
  }

  __device__ __forceinline__ void WaitForCopies() const {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  template <typename Value, typename OffsetOfLane, typename ValueOfLane>
  __device__ __forceinline__ void Store(
      const OffsetOfLane& offset_of_lane,
      const ValueOfLane& value_of_lane) const {
    const int lane = lane_;
    *reinterpret_cast<Value*>(shared_ + offset_of_lane(lane)) =
        value_of_lane(lane);
  }

  template <typename Value, typename OffsetOfLane, typename Use>
  __device__ __forceinline__ void Load(const OffsetOfLane& offset_of_lane,
                                       const Use& use) const {
    const int lane = lane_;
    use(lane, *reinterpret_cast<const Value*>(shared_ + offset_of_lane(lane)));
  }

  // Over each run of kLanes lanes; all of them get the result.
  template <int kLanes, int kCount>
  __device__ __forceinline__ void SumOverLanes(
      PerLane<float, kCount>& values) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        values(0, i) += __shfl_xor_sync(0xffffffffu, values(0, i), step);
      }
    }
  }

  template <int kLanes, int kCount>
  __device__ __forceinline__ void MaxOverLanes(
      PerLane<float, kCount>& values) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        values(0, i) = fmaxf(values(0, i),
                             __shfl_xor_sync(0xffffffffu, values(0, i), step));
      }
    }
  }

 private:
  unsigned char* shared_;
  uint32_t window_;  // Of shared_, in the address space of shared memory.
  int lane_;
};

// What each warp keeps between phases.
template <typename State, int kWarps>
class PerWarp {
 public:
  __device__ __forceinline__ State& Of(const Warp&) { return state_; }

 private:
  State state_;
};

class WarpBlock {
 public:
  explicit __device__ __forceinline__ WarpBlock(unsigned char* shared)
      : warp_(shared) {}

  template <typename State, int kWarps, typename Body>
  __device__ __forceinline__ void Phase(PerWarp<State, kWarps>& states,
                                        const Body& body) {
    body(warp_, states.Of(warp_));
    __syncthreads();
  }

  template <typename State, int kWarps, typename Body>
  __device__ __forceinline__ void Part(PerWarp<State, kWarps>& states,
                                       const Body& body) {
    body(warp_, states.Of(warp_));
  }

 private:
  Warp warp_;
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_WARP_DEVICE_H_
