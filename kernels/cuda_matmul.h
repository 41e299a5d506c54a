// kernels/cuda_matmul.h: what matmul_cuda.cu shows besides the product.

#ifndef HOLDFAST_KERNELS_CUDA_MATMUL_H_
#define HOLDFAST_KERNELS_CUDA_MATMUL_H_

#include <cstddef>
#include <string>

namespace holdfast::kernels {

// What cuBLAS recommends for compute capability 9.0 and later, of each stream
// that products run on (its Scratch). A part of a run's numerics: the library
// chooses by it.
inline constexpr size_t kCudaMatmulWorkspaceBytes = size_t{32} << 20;

// "cublasLt 13.1.0, ..."
std::string CudaMatmulDescription();

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_MATMUL_H_
