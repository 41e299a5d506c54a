// kernels/attention.h: causal attention with grouped key and value heads.
//
//   out[i] = sum over j <= i of softmax_j(scale q[i] . k[j]) v[j]
//
// for each query head h, with key and value head h / (heads / kv_heads). The
// sequences of a call do not see each other.
//
// Method. Query rows go in tiles, key rows in tiles; scores exist for one tile
// pair at a time. The forward keeps the log of each row's sum of exponentials,
// from which the backward makes the probabilities again.
//
// Order. Scores, softmax and all sums over keys, queries and the heads of a
// group are FP32, in tile order; probabilities are rounded to T before they
// meet v, as are the score gradients before they meet q and k. One (sequence,
// head) in the forward and one (sequence, key head) in the backward is one
// thread's work from end to end, so the number of threads never changes a bit;
// nor do more threads than that help.
//
// A NaN in a key or value reaches later positions, and earlier ones of its own
// tile.
//
// Memory. Kept by the caller: out and lse, (2 or 4) * head_dim + 4 bytes per
// row and head. Scratch of each thread, kept between calls: in the forward 4 *
// kAttentionTile * (kAttentionTile + head_dim) bytes and a tile of T, in the
// backward 8 * kAttentionTile^2 + 12 * positions * head_dim and two tiles of T.

#ifndef HOLDFAST_KERNELS_ATTENTION_H_
#define HOLDFAST_KERNELS_ATTENTION_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

// Rows of a query or key tile. Part of a run's numerics.
inline constexpr int64_t kAttentionTile = 128;

struct AttentionShape {
  int64_t sequences = 0;
  int64_t positions = 0;  // Rows of one sequence.
  int64_t heads = 0;      // Query heads here; a multiple of kv_heads.
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0.0f;  // Above 0; usually 1 / sqrt(head_dim).
};

// Row r of sequence s starts at pointer + (s * positions + r) * stride, so q, k
// and v may be columns of one fused matrix.
template <typename T>
struct AttentionArgs {
  AttentionShape shape;
  const T* q = nullptr;  // heads * head_dim columns
  int64_t q_stride = 0;
  const T* k = nullptr;  // kv_heads * head_dim columns
  int64_t k_stride = 0;
  const T* v = nullptr;
  int64_t v_stride = 0;
  T* out = nullptr;  // heads * head_dim columns
  int64_t out_stride = 0;
  float* lse = nullptr;  // [sequences, heads, positions]
};

template <typename T>
void AttentionForward(Stream& stream, const AttentionArgs<T>& args);

template <typename T>
struct AttentionBackwardArgs {
  AttentionShape shape;
  const T* q = nullptr;
  int64_t q_stride = 0;
  const T* k = nullptr;
  int64_t k_stride = 0;
  const T* v = nullptr;
  int64_t v_stride = 0;
  const T* out = nullptr;  // From the forward, as is lse.
  int64_t out_stride = 0;
  const float* lse = nullptr;
  const T* dout = nullptr;
  int64_t dout_stride = 0;
  T* dq = nullptr;  // Written, not added to; none may overlap an input.
  int64_t dq_stride = 0;
  T* dk = nullptr;
  int64_t dk_stride = 0;
  T* dv = nullptr;
  int64_t dv_stride = 0;
};

template <typename T>
void AttentionBackward(Stream& stream, const AttentionBackwardArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ATTENTION_H_
