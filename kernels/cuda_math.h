// kernels/cuda_math.h: arithmetic of the GPU's kernels, on both sides.
//
// nvcc fuses a product and a sum into one rounding where it likes. The *Rn
// functions are never fused: a kernel that uses them alone has the bits of its
// CPU twin, whatever flags it is compiled with. On the host they are the plain
// operators (built with -ffp-contract=off).

#ifndef HOLDFAST_KERNELS_CUDA_MATH_H_
#define HOLDFAST_KERNELS_CUDA_MATH_H_

#include <cmath>

#include "kernels/cuda_host_device.h"
#ifndef __CUDACC__
#include "kernels/vector.h"
#endif

namespace holdfast::kernels {

#ifdef __CUDA_ARCH__
__device__ inline float AddRn(float x, float y) { return __fadd_rn(x, y); }
__device__ inline float SubRn(float x, float y) { return __fsub_rn(x, y); }
__device__ inline float MulRn(float x, float y) { return __fmul_rn(x, y); }
__device__ inline float DivRn(float x, float y) { return __fdiv_rn(x, y); }
__device__ inline float SqrtRn(float x) { return __fsqrt_rn(x); }
__device__ inline double AddRn(double x, double y) { return __dadd_rn(x, y); }
__device__ inline double MulRn(double x, double y) { return __dmul_rn(x, y); }
#else
HF_HOST_DEVICE inline float AddRn(float x, float y) { return x + y; }
HF_HOST_DEVICE inline float SubRn(float x, float y) { return x - y; }
HF_HOST_DEVICE inline float MulRn(float x, float y) { return x * y; }
HF_HOST_DEVICE inline float DivRn(float x, float y) { return x / y; }
HF_HOST_DEVICE inline float SqrtRn(float x) { return std::sqrt(x); }
HF_HOST_DEVICE inline double AddRn(double x, double y) { return x + y; }
HF_HOST_DEVICE inline double MulRn(double x, double y) { return x * y; }
#endif

// exp(x). On a GPU the toolkit's expf, within 1 unit in the last place; on the
// host the processor kernels' own, within 2. They also differ below -87.33,
// where the host gives 0 and the GPU a subnormal.
HF_HOST_DEVICE inline float ExpOf(float x) {
#ifdef __CUDACC__
  return expf(x);
#else
  return Exp(x);
#endif
}

// x / y within 2 units in the last place on a GPU, exact on the host. y is 1 or
// more; from 2^126 on the GPU gives 0.
HF_HOST_DEVICE inline float QuotientOf(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_MATH_H_
