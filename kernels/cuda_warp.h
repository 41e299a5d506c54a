// kernels/cuda_warp.h: one block of threads written once, for the device and,
// lane by lane, for the host.
//
// Code of a block is marked HF_BLOCK_CODE and written against three classes:
//
//   WarpBlock    Phase(state, f): every warp runs f, then all meet at a
//   barrier;
//            Part(state, f): the same without the barrier
//   Warp     what 32 lanes do together: matrix products on the tensor cores,
//            matrices from shared memory to registers, copies in the
//            background, sums over lanes; ForEachLane(f) for the rest
//   PerLane  values of each lane: registers, so every index must be a constant
//            once the loops are unrolled (HF_UNROLL)
//
// nvcc gets them from cuda_warp_device.h. Any other compiler gets
// cuda_warp_host.h, which follows the PTX manual's tables of which lane holds
// which element, delays copies until they are waited for, and counts bank
// conflicts: tests run whole kernels on it.
//
// This file: what both have in common.

#ifndef HOLDFAST_KERNELS_CUDA_WARP_H_
#define HOLDFAST_KERNELS_CUDA_WARP_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_host_device.h"

#ifdef __CUDACC__
#define HF_BLOCK_CODE __device__ __forceinline__
#else
#define HF_BLOCK_CODE inline
#endif

namespace holdfast::kernels {

inline constexpr int kWarpLanes = 32;

// Shared memory is addressed in bytes from the start of the block's.
using SharedOffset = uint32_t;

// 16 bytes or a word of 4 on their way to shared memory, aligned to their size;
// zeros if `valid` is false, and then `from` may point anywhere: it is not
// read.
struct SharedCopy {
  SharedOffset to = 0;
  const void* from = nullptr;
  bool valid = true;
};

// What a lane moves at once where it can.
struct [[gnu::may_alias]] alignas(16) SixteenBytes {
  uint32_t words[4];
};

struct alignas(8) TwoFloats {
  float at[2];
};

// The product of one instruction, mma.m16n8k16 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type"):
//
//   D[16 x 8] += A[16 x 16] B[16 x 8]
//
// A lane holds 4 words of A and 2 of B, two Bf16 each (the lower half first),
// and 4 floats of D. Below, where element i of a lane's share stands.
struct MatrixPlace {
  int row;
  int column;
};
HF_BLOCK_CODE constexpr MatrixPlace PlaceInA(int lane, int i) {
  return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}
HF_BLOCK_CODE constexpr MatrixPlace PlaceInB(int lane, int i) {
  return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}
HF_BLOCK_CODE constexpr MatrixPlace PlaceInD(int lane, int i) {
  return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

}  // namespace holdfast::kernels

#ifdef __CUDACC__
#include "kernels/cuda_warp_device.h"  // IWYU pragma: export
#else
#include "kernels/cuda_warp_host.h"  // IWYU pragma: export
#endif

#endif  // HOLDFAST_KERNELS_CUDA_WARP_H_
