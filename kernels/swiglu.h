// kernels/swiglu.h: out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
//
// gate and up may be the two halves of one fused matrix: pass its row length as
// their stride. No sums, so no order.

#ifndef HOLDFAST_KERNELS_SWIGLU_H_
#define HOLDFAST_KERNELS_SWIGLU_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

template <typename T>
struct SwigluArgs {
  const T* gate = nullptr;  // [rows, columns] at in_stride
  const T* up = nullptr;    // [rows, columns] at in_stride
  int64_t in_stride = 0;    // Elements between rows of gate and of up.
  T* out = nullptr;         // [rows, columns], dense
  int64_t rows = 0;
  int64_t columns = 0;
};

template <typename T>
void SwigluForward(Stream& stream, const SwigluArgs<T>& args);

template <typename T>
struct SwigluBackwardArgs {
  const T* gate = nullptr;  // As in the forward.
  const T* up = nullptr;
  int64_t in_stride = 0;
  const T* dout = nullptr;  // [rows, columns], dense
  T* dgate = nullptr;       // At dstride; may be gate when the strides agree
  T* dup = nullptr;         // At dstride; may be up when the strides agree
  int64_t dstride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

template <typename T>
void SwigluBackward(Stream& stream, const SwigluBackwardArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_SWIGLU_H_
