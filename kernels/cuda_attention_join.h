// kernels/cuda_attention_join.h: adds the partial sums of the gradients of keys
// and values (kernels/attention_split.h), a part after the other, and rounds.
//
// Each thread has 8 columns of a row of dk or dv. Bytes moved: the partial sums
// once, and the results.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_JOIN_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_JOIN_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_split.h"
#include "kernels/bf16.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

// Every row and head of dk and dv starts on 16 bytes, and so does `partial`.
struct AttentionKeyGradientJoin {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  static constexpr int kColumns = 8;  // Of a thread.

  AttentionBackwardArgs<Bf16> args;
  KeyGradientSplit split;  // Of more than one part.
  const float* partial;

  int64_t Blocks() const { return (Count() + kThreads - 1) / kThreads; }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    block.ForEachOnly([&](int thread) {
      for (int64_t i = block.index() * kThreads + thread; i < Count();
           i += block.count() * kThreads) {
        // What is split is small: 32 bits hold it.
        Join(static_cast<int>(i));
      }
    });
  }

 private:
  struct alignas(16) FourFloats {
    float at[4];
  };
  struct alignas(16) Columns {
    Bf16 at[kColumns];
  };

  // Rows of dk, or of dv, in the partial sums.
  HF_HOST_DEVICE int64_t Rows() const {
    return args.shape.sequences * args.shape.kv_heads * args.shape.positions;
  }
  HF_HOST_DEVICE int64_t Count() const {
    return 2 * Rows() * (args.shape.head_dim / kColumns);
  }

  HF_HOST_DEVICE void Join(int i) const {
    const int pieces = static_cast<int>(args.shape.head_dim) / kColumns;
    const int positions = static_cast<int>(args.shape.positions);
    const int kv_heads = static_cast<int>(args.shape.kv_heads);
    const int column = i % pieces * kColumns;
    const int partial_row = i / pieces;
    const int rows = static_cast<int>(Rows());
    const bool of_v = partial_row >= rows;
    const int row = of_v ? partial_row - rows : partial_row;
    const int position = row % positions;
    const int head = row / positions % kv_heads;
    const int sequence = row / positions / kv_heads;
    const int parts = split.PartsOf(
        static_cast<int>(KeyTilePasses(args.shape, position / kKeyTileRows)));
    if (parts == 1) return;  // Stored by its block.
    const int64_t stride = 2 * Rows() * args.shape.head_dim;
    const float* const from =
        partial + partial_row * args.shape.head_dim + column;
    float sums[kColumns];
    HF_UNROLL
    for (int c = 0; c < kColumns; ++c) sums[c] = 0.0f;
    HF_UNROLL_BY(4)
    for (int part = 0; part < parts; ++part) {
      const auto* const fours =
          reinterpret_cast<const FourFloats*>(from + part * stride);
      HF_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[c] += fours[c / 4].at[c % 4];
    }
    Columns rounded;
    HF_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      rounded.at[c] = FromFloat<Bf16>(sums[c]);
    }
    const int64_t at = (int64_t{sequence} * positions + position) *
                           (of_v ? args.dv_stride : args.dk_stride) +
                       head * args.shape.head_dim + column;
    *reinterpret_cast<Columns*>((of_v ? args.dv : args.dk) + at) = rounded;
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_JOIN_H_
