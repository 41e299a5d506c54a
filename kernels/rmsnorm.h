// kernels/rmsnorm.h: y = x / sqrt(mean(x^2) + eps) * weight, row by row.
//
// Order of summation. Sums over a row run in kLanes interleaved partial sums
// that are joined pairwise; the weight's gradient adds its rows in row order,
// starting from zero, and is then added to what is there. Neither depends on
// the number of threads.

#ifndef HOLDFAST_KERNELS_RMSNORM_H_
#define HOLDFAST_KERNELS_RMSNORM_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

template <typename T>
struct RmsNormArgs {
  const T* x = nullptr;       // [rows, hidden]
  const T* weight = nullptr;  // [hidden]
  T* y = nullptr;             // [rows, hidden]; may be x
  float* rstd = nullptr;      // [rows], 1 / sqrt(mean + eps), for the backward
  int64_t rows = 0;
  int64_t hidden = 0;
  float eps = 1e-5f;
};

template <typename T>
void RmsNormForward(Stream& stream, const RmsNormArgs<T>& args);

template <typename T>
struct RmsNormBackwardArgs {
  const T* x = nullptr;         // [rows, hidden], as in the forward
  const T* weight = nullptr;    // [hidden]
  const float* rstd = nullptr;  // [rows], from the forward
  const T* dy = nullptr;        // [rows, hidden]
  // Null, or [rows, hidden]: added to dx before the one rounding, for the
  // residual path around the norm. May be dx itself.
  const T* residual = nullptr;
  T* dx = nullptr;           // [rows, hidden]; may be dy
  float* dweight = nullptr;  // [hidden], added to; null to skip
  int64_t rows = 0;
  int64_t hidden = 0;
};

template <typename T>
void RmsNormBackward(Stream& stream, const RmsNormBackwardArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_RMSNORM_H_
