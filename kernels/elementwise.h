// kernels/elementwise.h: copies, sums and scalings of flat arrays.
//
// T is float or Bf16. Arithmetic is FP32, rounded once at the store. `count` is
// in elements. Outputs may be the same array as an input, but not a shifted
// part of it.

#ifndef HOLDFAST_KERNELS_ELEMENTWISE_H_
#define HOLDFAST_KERNELS_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

// out = x + y, rounded to T: the residual stream.
template <typename T>
void Add(Stream& stream, const T* x, const T* y, T* out, int64_t count);

// to = from, rounded where To is narrower. (float, Bf16), (Bf16, float), or
// the same type.
template <typename From, typename To>
void Cast(Stream& stream, const From* from, To* to, int64_t count);

// x = x * factor
template <typename T>
void Scale(Stream& stream, T* x, float factor, int64_t count);

// x = 0
template <typename T>
void Zero(Stream& stream, T* x, int64_t count);

// y += x in FP32.
template <typename T>
void Accumulate(Stream& stream, const T* x, float* y, int64_t count);

// y = the larger of y and x; NaN where either is, y where they are equal.
void AccumulateMax(Stream& stream, const float* x, float* y, int64_t count);

// The block of the state layout: norms, owners and extents are cut here.
inline constexpr int64_t kBlockElements = 2048;

constexpr int64_t BlockCount(int64_t count) {
  return (count + kBlockElements - 1) / kBlockElements;
}

// block_sums[b] = the sum of squares of block b of x in FP64, BlockCount(count)
// of them; the last block may be short. Order: element i of a block joins
// partial sum i % 8, each in increasing i; then ((0+4)+(2+6))+((1+5)+(3+7)).
// A block's sum depends on its own elements only, so adding the blocks of a
// tensor in order gives the same bits whoever holds them.
void BlockSumsOfSquares(Stream& stream, const float* x, int64_t count,
                        double* block_sums);

// *total = the block sums of x added in block order: the sum of squares of one
// array in one call.
void SumOfSquares(Stream& stream, const float* x, int64_t count, double* total);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ELEMENTWISE_H_
