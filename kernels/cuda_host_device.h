// kernels/cuda_host_device.h: marks a function that a GPU may call too.
//
// Code marked so is plain C++ for g++, whose tests run it on the host, and is
// compiled for both sides by nvcc. It calls only what is marked so itself, what
// is a builtin, or what both sides have (kernels/cuda_math.h).

#ifndef HOLDFAST_KERNELS_CUDA_HOST_DEVICE_H_
#define HOLDFAST_KERNELS_CUDA_HOST_DEVICE_H_

#ifdef __CUDACC__
#define HF_HOST_DEVICE __host__ __device__
#else
#define HF_HOST_DEVICE
#endif

// Before a loop of constant bounds whose index picks registers: unrolled whole
// on a GPU, or by so many steps. Any other compiler decides for itself.
#ifdef __CUDA_ARCH__
#define HF_PRAGMA(words) _Pragma(#words)
#define HF_UNROLL HF_PRAGMA(unroll)
#define HF_UNROLL_BY(count) HF_PRAGMA(unroll count)
#else
#define HF_UNROLL
#define HF_UNROLL_BY(count)
#endif

#endif  // HOLDFAST_KERNELS_CUDA_HOST_DEVICE_H_
