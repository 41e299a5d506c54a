// kernels/cuda_swiglu.h: SwiGLU forward and backward for a GPU.
//
// Against the CPU: within 1e-6 relative and one rounding to T (the exponential
// and the quotient differ by units in the last place; sums of two may be
// fused). dgate, where its terms cancel: within 1e-6 times |dout up|. Gates
// below -87 give magnitudes below 1e-36, on either side, or zero.
//
// Bytes moved per element of a half: forward 3 sizeof(T), backward 5.

#ifndef HOLDFAST_KERNELS_CUDA_SWIGLU_H_
#define HOLDFAST_KERNELS_CUDA_SWIGLU_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_math.h"
#include "kernels/cuda_pack.h"
#include "kernels/swiglu.h"

namespace holdfast::kernels {

template <typename T, int kPack>
struct SwigluForwardOp {
  SwigluArgs<T> args;

  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    const int64_t column = pack * kPack;
    const int64_t at = row * args.in_stride + column;
    const auto gate = LoadPack<kPack>(args.gate + at);
    auto out = LoadPack<kPack>(args.up + at);
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float g = ToFloat(gate.at[i]);
      const float silu = QuotientOf(g, 1.0f + ExpOf(-g));
      out.at[i] = FromFloat<T>(silu * ToFloat(out.at[i]));
    }
    StorePack(out, args.out + row * args.columns + column);
  }
};

template <typename T, int kPack>
struct SwigluBackwardOp {
  SwigluBackwardArgs<T> args;

  // A thread reads gate and up where it writes dgate and dup, before.
  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    const int64_t column = pack * kPack;
    const int64_t at = row * args.in_stride + column;
    auto gate = LoadPack<kPack>(args.gate + at);
    auto up = LoadPack<kPack>(args.up + at);
    const auto dout = LoadPack<kPack>(args.dout + row * args.columns + column);
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float g = ToFloat(gate.at[i]);
      const float d = ToFloat(dout.at[i]);
      const float u = ToFloat(up.at[i]);
      const float sigmoid = QuotientOf(1.0f, 1.0f + ExpOf(-g));
      const float silu = g * sigmoid;
      const float slope = sigmoid + silu * (1.0f - sigmoid);
      gate.at[i] = FromFloat<T>(d * u * slope);
      up.at[i] = FromFloat<T>(d * silu);
    }
    StorePack(gate, args.dgate + row * args.dstride + column);
    StorePack(up, args.dup + row * args.dstride + column);
  }
};

template <typename T, typename Runner>
void RunSwigluForward(const SwigluArgs<T>& args, const Runner& run) {
  constexpr int kPack = 16 / sizeof(T);
  if (args.columns % kPack == 0 && args.in_stride % kPack == 0 &&
      PackAligned<kPack>(args.gate) && PackAligned<kPack>(args.up) &&
      PackAligned<kPack>(args.out)) {
    RunRows(SwigluForwardOp<T, kPack>{args}, args.rows, args.columns / kPack,
            run);
  } else {
    RunRows(SwigluForwardOp<T, 1>{args}, args.rows, args.columns, run);
  }
}

template <typename T, typename Runner>
void RunSwigluBackward(const SwigluBackwardArgs<T>& args, const Runner& run) {
  constexpr int kPack = 16 / sizeof(T);
  if (args.columns % kPack == 0 && args.in_stride % kPack == 0 &&
      args.dstride % kPack == 0 && PackAligned<kPack>(args.gate) &&
      PackAligned<kPack>(args.up) && PackAligned<kPack>(args.dout) &&
      PackAligned<kPack>(args.dgate) && PackAligned<kPack>(args.dup)) {
    RunRows(SwigluBackwardOp<T, kPack>{args}, args.rows, args.columns / kPack,
            run);
  } else {
    RunRows(SwigluBackwardOp<T, 1>{args}, args.rows, args.columns, run);
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_SWIGLU_H_
