// kernels/rope.h: rotary position embedding in the Hugging Face Llama layout.
//
// Within a head, element i turns with element i + head_dim / 2 by the angle
// position * theta^(-2 i / head_dim):
//
//   y[i]        = x[i] cos - x[i + half] sin
//   y[i + half] = x[i + half] cos + x[i] sin
//
// The backward turns by the opposite angle. No sums, so no order.

#ifndef HOLDFAST_KERNELS_ROPE_H_
#define HOLDFAST_KERNELS_ROPE_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

// Floats in a table for `positions` positions: a cosine and a sine for each of
// the head_dim / 2 pairs.
constexpr int64_t RopeTableSize(int64_t positions, int64_t head_dim) {
  return positions * head_dim;
}

// Fills table [positions, 2, head_dim / 2] for positions start, start + 1, ...
// The angles are computed in FP32 as the Hugging Face model does, so that
// weights trained there see the same rotations. Slow (libm): once, at start.
void RopeFillTable(Stream& stream, float* table, int64_t start,
                   int64_t positions, int64_t head_dim, float theta);

template <typename T>
struct RopeArgs {
  T* x = nullptr;      // [sequences * positions, stride], turned in place
  int64_t stride = 0;  // Elements between rows; heads * head_dim or more.
  int64_t sequences = 0;
  int64_t positions = 0;  // Rows of one sequence.
  int64_t heads = 0;      // Columns [0, heads * head_dim) of a row are turned.
  int64_t head_dim = 0;   // Even.
  const float* table = nullptr;  // Row p is for row p of each sequence.
};

template <typename T>
void RopeForward(Stream& stream, const RopeArgs<T>& args);

// x holds the gradient of the forward's result; becomes that of its input.
template <typename T>
void RopeBackward(Stream& stream, const RopeArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ROPE_H_
