// kernels/cuda_run.h: launches a kernel written for kernels/cuda_block.h.
//
// For .cu files. A failed launch stays as the runtime's last error of the
// calling thread, which the device looks at.

#ifndef HOLDFAST_KERNELS_CUDA_RUN_H_
#define HOLDFAST_KERNELS_CUDA_RUN_H_

#ifdef __CUDACC__

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_block.h"
#include "kernels/cuda_result.h"

namespace holdfast::kernels {

// More blocks than any GPU runs at once, times ten; a kernel strides over what
// is beyond.
inline constexpr int64_t kMaxGridBlocks = 32768;

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads)
    RunBlock(const __grid_constant__ Kernel kernel) {
  // One name and one type for all kernels: the linker sees a single symbol.
  extern __shared__ uint4 cuda_run_shared[];
  DeviceBlock block(reinterpret_cast<std::byte*>(cuda_run_shared));
  kernel(block);
}

// Enqueues `blocks` blocks, or nothing for 0.
template <typename Kernel>
void RunOnDevice(cudaStream_t stream, const Kernel& kernel, int64_t blocks,
                 int64_t max_blocks = kMaxGridBlocks) {
  static_assert(Kernel::kThreads % kWarpThreads == 0 &&
                Kernel::kThreads <= 1024);
  if (blocks <= 0) return;
  constexpr int kDefaultSharedBytes = 48 * 1024;
  if constexpr (Kernel::kSharedBytes > kDefaultSharedBytes) {
    if (!LeaveToCheckLaunch(cudaFuncSetAttribute(
            RunBlock<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            Kernel::kSharedBytes))) {
      return;
    }
  }
  RunBlock<Kernel><<<static_cast<unsigned>(std::min(blocks, max_blocks)),
                     Kernel::kThreads, Kernel::kSharedBytes, stream>>>(kernel);
}

// For the Run functions of kernels/cuda_*.h.
struct DeviceRunner {
  cudaStream_t stream;

  template <typename Kernel>
  void operator()(const Kernel& kernel, int64_t blocks) const {
    RunOnDevice(stream, kernel, blocks);
  }
};

}  // namespace holdfast::kernels

#endif  // __CUDACC__

#endif  // HOLDFAST_KERNELS_CUDA_RUN_H_
