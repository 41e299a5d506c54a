// tests/support/gpu_kernels_on_host.h: a device whose kernels are the GPU's own
// code, run by the host.
//
// Each kernel runs through its Run function and a block of threads on the host
// (kernels/cuda_host_block.h), attention in Bf16 on a model of the tensor cores
// (kernels/cuda_warp_host.h), at once; only the launch itself and the library's
// matrix products are missing (products are the processor's). So a whole
// training step meets the GPU's index arithmetic, alignments, orders of
// summation and overlapping arguments where there is no GPU. Misaligned packs
// trap, as on one.
//
// Memory and copies are the CPU device's.

#ifndef HOLDFAST_TESTS_SUPPORT_GPU_KERNELS_ON_HOST_H_
#define HOLDFAST_TESTS_SUPPORT_GPU_KERNELS_ON_HOST_H_

#include <memory>

#include "kernels/device.h"

namespace holdfast::tests {

std::unique_ptr<kernels::Device> NewGpuKernelsOnHost();

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_GPU_KERNELS_ON_HOST_H_
