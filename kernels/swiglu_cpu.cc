// kernels/swiglu_cpu.cc: SwiGLU on the CPU: rows in parallel.

#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/swiglu.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kRowsPerItem = 8;

template <typename T>
HOLDFAST_VECTOR_CLONES void ForwardRows(const SwigluArgs<T>& args,
                                        int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate + row * args.in_stride;
    const T* up = args.up + row * args.in_stride;
    T* out = args.out + row * args.columns;
#pragma omp simd
    for (int64_t i = 0; i < args.columns; ++i) {
      const float g = ToFloat(gate[i]);
      const float silu = g / (1.0f + Exp(-g));
      out[i] = FromFloat<T>(silu * ToFloat(up[i]));
    }
  }
}

template <typename T>
HOLDFAST_VECTOR_CLONES void BackwardRows(const SwigluBackwardArgs<T>& args,
                                         int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate + row * args.in_stride;
    const T* up = args.up + row * args.in_stride;
    const T* dout = args.dout + row * args.columns;
    T* dgate = args.dgate + row * args.dstride;
    T* dup = args.dup + row * args.dstride;
#pragma omp simd
    for (int64_t i = 0; i < args.columns; ++i) {
      const float g = ToFloat(gate[i]);
      const float d = ToFloat(dout[i]);
      const float u = ToFloat(up[i]);
      const float sigmoid = 1.0f / (1.0f + Exp(-g));
      const float silu = g * sigmoid;
      // silu' = sigmoid (1 + g (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
      const float slope = sigmoid + silu * (1.0f - sigmoid);
      dgate[i] = FromFloat<T>(d * u * slope);
      dup[i] = FromFloat<T>(d * silu);
    }
  }
}

}  // namespace

template <typename T>
void SwigluForward(Stream& stream, const SwigluArgs<T>& args) {
  KERNEL_CHECK(args.in_stride >= args.columns, "stride %d is below %d columns",
               args.in_stride, args.columns);
  if (auto* set = KernelSetOf<T>(stream))
    return set->SwigluForward(stream, args);
  stream.Launch([args] {
    ParallelRanges(args.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      ForwardRows(args, begin, end);
    });
  });
}

template <typename T>
void SwigluBackward(Stream& stream, const SwigluBackwardArgs<T>& args) {
  KERNEL_CHECK(args.in_stride >= args.columns && args.dstride >= args.columns,
               "strides %d and %d, %d columns", args.in_stride, args.dstride,
               args.columns);
  if (auto* set = KernelSetOf<T>(stream))
    return set->SwigluBackward(stream, args);
  stream.Launch([args] {
    ParallelRanges(args.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      BackwardRows(args, begin, end);
    });
  });
}

template void SwigluForward(Stream&, const SwigluArgs<float>&);
template void SwigluForward(Stream&, const SwigluArgs<Bf16>&);
template void SwigluBackward(Stream&, const SwigluBackwardArgs<float>&);
template void SwigluBackward(Stream&, const SwigluBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
