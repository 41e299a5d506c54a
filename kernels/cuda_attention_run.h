// kernels/cuda_attention_run.h: which kernels attention on a GPU is made of,
// for a device and for a host that runs them in tests.
//
// On the tensor cores where they take the arguments: Bf16, heads of up to 128
// elements, every head of every row on 16 bytes. Else by the plain kernels, up
// to kCudaHeadDimMax. The choice depends on shape, strides and addresses alone,
// never on the device.
//
// A runner has run(kernel, blocks) for kernels of kernels/cuda_block.h and
// run.Warps(kernel) for those of kernels/cuda_warp.h.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_RUN_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_RUN_H_

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/attention_split.h"
#include "kernels/bf16.h"
#include "kernels/check.h"
#include "kernels/cuda_attention.h"
#include "kernels/cuda_attention_backward.h"
#include "kernels/cuda_attention_forward.h"
#include "kernels/cuda_attention_join.h"
#include "kernels/cuda_attention_plain.h"
#include "kernels/cuda_attention_plain_backward.h"

namespace holdfast::kernels {
namespace attention {

// One matrix of the arguments.
struct Matrix {
  const void* at;
  int64_t stride;
};

// Heads of `head_dim` elements T start on 16 bytes in every row of all.
template <typename T>
bool OnSixteenBytes(int64_t head_dim, std::initializer_list<Matrix> matrices) {
  constexpr int64_t kElements = 16 / sizeof(T);
  bool on = head_dim % kElements == 0;
  for (const Matrix& matrix : matrices) {
    on = on && reinterpret_cast<uintptr_t>(matrix.at) % 16 == 0 &&
         matrix.stride % kElements == 0;
  }
  return on;
}

// The kernels count rows, and rows times heads, in 32 bits.
inline void CheckSizes(const AttentionShape& shape) {
  KERNEL_CHECK(shape.head_dim <= kCudaHeadDimMax,
               "attention on a GPU takes heads of up to %d elements, not %d",
               kCudaHeadDimMax, shape.head_dim);
  KERNEL_CHECK(shape.sequences * shape.positions * shape.heads <
                   (int64_t{1} << 31) - kAttentionTile,
               "attention on a GPU: %d sequences of %d positions, %d heads",
               shape.sequences, shape.positions, shape.heads);
}

template <typename Kernel, typename Runner>
void RunBlocks(const Kernel& kernel, const Runner& run) {
  run(kernel, kernel.Blocks());
}

template <int kWidth, typename T, typename Runner>
void RunPlainBackward(const AttentionBackwardArgs<T>& args, const float* delta,
                      const Runner& run) {
  RunBlocks(
      AttentionBackwardPlain<T, kWidth, false>{.args = args, .delta = delta},
      run);
  RunBlocks(
      AttentionBackwardPlain<T, kWidth, true>{.args = args, .delta = delta},
      run);
}

template <int kHeadDim, typename Runner>
void RunWarpsBackward(const AttentionBackwardArgs<Bf16>& args,
                      const KeyGradientSplit& split, float* scratch,
                      const Runner& run) {
  float* const partial = scratch + AttentionDeltaFloats(args.shape);
  run.Warps(AttentionBackwardBlock<QueryGradientTiles<kHeadDim>, false>{
      .args = args, .delta = scratch});
  run.Warps(AttentionBackwardBlock<KeyGradientTiles<kHeadDim>, true>{
      .args = args, .delta = scratch, .split = split, .partial = partial});
  if (split.parts == 1) return;
  RunBlocks(
      AttentionKeyGradientJoin{
          .args = args, .split = split, .partial = partial},
      run);
}

}  // namespace attention

// True where the tensor cores take it.
template <typename T>
bool AttentionForwardOnWarps(const AttentionArgs<T>& args) {
  return std::is_same_v<T, Bf16> && args.shape.head_dim <= kWarpsHeadDimMax &&
         attention::OnSixteenBytes<T>(args.shape.head_dim,
                                      {{args.q, args.q_stride},
                                       {args.k, args.k_stride},
                                       {args.v, args.v_stride},
                                       {args.out, args.out_stride}});
}
template <typename T>
bool AttentionBackwardOnWarps(const AttentionBackwardArgs<T>& args) {
  return std::is_same_v<T, Bf16> && args.shape.head_dim <= kWarpsHeadDimMax &&
         attention::OnSixteenBytes<T>(args.shape.head_dim,
                                      {{args.q, args.q_stride},
                                       {args.k, args.k_stride},
                                       {args.v, args.v_stride},
                                       {args.dout, args.dout_stride},
                                       {args.dq, args.dq_stride},
                                       {args.dk, args.dk_stride},
                                       {args.dv, args.dv_stride}});
}

template <typename T, typename Runner>
void RunAttentionForward(const AttentionArgs<T>& args, const Runner& run) {
  attention::CheckSizes(args.shape);
  if constexpr (std::is_same_v<T, Bf16>) {
    if (AttentionForwardOnWarps(args)) {
      if (args.shape.head_dim <= 64) {
        run.Warps(AttentionForwardBlock<ForwardTiles<64>>{.args = args});
      } else {
        run.Warps(AttentionForwardBlock<ForwardTiles<128>>{.args = args});
      }
      return;
    }
  }
  if (args.shape.head_dim <= 64) {
    attention::RunBlocks(AttentionForwardPlain<T, 64>{.args = args}, run);
  } else if (args.shape.head_dim <= 128) {
    attention::RunBlocks(AttentionForwardPlain<T, 128>{.args = args}, run);
  } else {
    attention::RunBlocks(AttentionForwardPlain<T, 256>{.args = args}, run);
  }
}

// `scratch`, on 16 bytes: AttentionBackwardScratch floats, or what `split`
// needs beside AttentionDeltaFloats.
template <typename T, typename Runner>
void RunAttentionBackward(const AttentionBackwardArgs<T>& args,
                          const KeyGradientSplit& split, float* scratch,
                          const Runner& run) {
  const AttentionShape& shape = args.shape;
  attention::CheckSizes(shape);
  if (attention::OnSixteenBytes<T>(
          shape.head_dim,
          {{args.out, args.out_stride}, {args.dout, args.dout_stride}})) {
    attention::RunBlocks(
        AttentionDelta<T, true>{.args = args, .delta = scratch}, run);
  } else {
    attention::RunBlocks(
        AttentionDelta<T, false>{.args = args, .delta = scratch}, run);
  }
  if constexpr (std::is_same_v<T, Bf16>) {
    if (AttentionBackwardOnWarps(args)) {
      if (shape.head_dim <= 64) {
        attention::RunWarpsBackward<64>(args, split, scratch, run);
      } else {
        attention::RunWarpsBackward<128>(args, split, scratch, run);
      }
      return;
    }
  }
  if (shape.head_dim <= 64) {
    attention::RunPlainBackward<64>(args, scratch, run);
  } else if (shape.head_dim <= 128) {
    attention::RunPlainBackward<128>(args, scratch, run);
  } else {
    attention::RunPlainBackward<256>(args, scratch, run);
  }
}
template <typename T, typename Runner>
void RunAttentionBackward(const AttentionBackwardArgs<T>& args, float* scratch,
                          const Runner& run) {
  RunAttentionBackward(args, SplitKeyGradients(args.shape), scratch, run);
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_RUN_H_
