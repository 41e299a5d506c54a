// kernels/adamw.h: one fused AdamW step over a flat slice of parameters.
//
// Blind to sharding: element i gets the same update, to the bit, whichever
// rank and thread computes it and whatever stands beside it in the slice.
//
// In FP32, every operation rounded on its own (no fused multiply-add), with
// step t counted from 1 and the two corrections computed once per call in FP64:
//
//   g  = grad * grad_scale
//   m  = m + (1 - beta1) * (g - m)
//   v  = v + (1 - beta2) * (g * g - v)
//   w  = w - lr * weight_decay * w                       decay, decoupled
//   w  = w - step_size * m / (sqrt(v) * correction + eps)
//
//   step_size = lr / (1 - beta1^t), correction = 1 / sqrt(1 - beta2^t)
//
// The master w is FP32; the weight that the model reads is w rounded to T.

#ifndef HOLDFAST_KERNELS_ADAMW_H_
#define HOLDFAST_KERNELS_ADAMW_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

template <typename T>
struct AdamWArgs {
  // Slices of `count` elements, none overlapping.
  T* weight = nullptr;          // out
  float* master = nullptr;      // in-out
  float* moment1 = nullptr;     // in-out
  float* moment2 = nullptr;     // in-out
  const float* grad = nullptr;  // in
  int64_t count = 0;

  int64_t step = 0;         // Counted from 1.
  float grad_scale = 1.0f;  // Multiplies every gradient first: clipping.
  float lr = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;  // 0 for norms.
};

// Runs as fast as memory: 14 (16 for float) bytes read and 14 written per
// element.
template <typename T>
void AdamW(Stream& stream, const AdamWArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ADAMW_H_
