// kernels/matmul.h: C (+)= op(A) op(B), the product nearly all time goes into.
//
// Order of summation. K is cut into blocks of kMatmulKBlock. Each block's
// product is summed in FP32 by one serial routine on a fixed tile of C; the
// blocks are added in order, in FP32; rounding to Bf16 happens once, at the
// end. Tiles depend on the shape alone, so the number of threads never changes
// a bit. The number of rows may: a product of half the rows is another shape.
//
//   C = round(((block0) + block1) + block2)              accumulate = false
//   C = (((C + block0) + block1) + block2)               accumulate = true
//
// A NaN or infinity in a row of op(A) or a column of op(B) reaches that row or
// column of C and no other.

#ifndef HOLDFAST_KERNELS_MATMUL_H_
#define HOLDFAST_KERNELS_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

// Part of a run's numerics: changing it changes bits. Serial tiles alone make
// the bits independent of threads; the blocks keep FP32 chains short. Against
// 512, a [1024, 768] input's products run 4 % faster, and none slower.
inline constexpr int64_t kMatmulKBlock = 1024;

// All matrices are row-major. A leading dimension is the distance in elements
// between the starts of two stored rows, at least the length of a stored row.
template <typename T, typename Out>
struct MatmulArgs {
  const T* a = nullptr;  // Stored [m, k], or [k, m] if transpose_a.
  int64_t lda = 0;
  bool transpose_a = false;

  const T* b = nullptr;  // Stored [k, n], or [n, k] if transpose_b.
  int64_t ldb = 0;
  bool transpose_b = false;

  Out* c = nullptr;  // [m, n]; overlaps neither a nor b.
  int64_t ldc = 0;

  int64_t m = 0;  // Any of m, n, k may be 0; k = 0 is an empty sum.
  int64_t n = 0;
  int64_t k = 0;

  bool accumulate = false;  // C += instead of C =. Out float only.
};

// (T, Out) is (float, float), (Bf16, float) or (Bf16, Bf16).
//
// Memory: per thread an FP32 tile and the library's scratch, kept between
// calls, see MatmulScratchBytes().
template <typename T, typename Out>
void Matmul(Stream& stream, const MatmulArgs<T, Out>& args);

// A linear layer stores its weight as [out, in], so with x [rows, in]:
//   y  [rows, out] = x w^T       transpose_b
//   dx [rows, in]  = dy w        no transpose
//   dw [out, in]  += dy^T x      transpose_a, accumulate, Out float

// What the bits of a product depend on here, for a run's fingerprint:
// "onednn 2.6.3 avx512_core_bf16, k block 512, ..."
std::string MatmulDescription();

// Bytes that products and attention hold at this moment on all threads of the
// process: FP32 tiles, widened blocks and the library's scratchpad. Grows with
// new shapes, then stands. Not in it: what the library allocates within a call.
size_t MatmulScratchBytes();

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_MATMUL_H_
