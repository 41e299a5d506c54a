// tests/unit/kernels/cuda/fake_cublaslt.h: the part of cuBLASLt that products
// use, as plain loops over column-major matrices.
//
// It takes nothing for granted: descriptors must be complete, the algorithm
// must have been chosen for the very product that is launched, and pointers
// must be aligned as the choice was told.

#ifndef HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUBLASLT_H_
#define HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUBLASLT_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace holdfast::kernels {

struct FakeCublasLt {
  cublasStatus_t fail_choice = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t fail_launch = CUBLAS_STATUS_SUCCESS;
  bool finds_nothing = false;

  int choices = 0;
  int launches = 0;
  int alive = 0;  // Handles and descriptors that were not destroyed.
  // Of the last choice.
  uint64_t workspace = 0;
  uint32_t reduction_mask = 0;
  cublasComputeType_t compute = CUBLAS_COMPUTE_16F;
};
FakeCublasLt& FakeLt();

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUBLASLT_H_
