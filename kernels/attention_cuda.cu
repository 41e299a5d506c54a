// kernels/attention_cuda.cu: launches attention on a GPU
// (kernels/cuda_attention_run.h chooses the kernels).

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/check.h"
#include "kernels/cuda_attention_run.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_result.h"
#include "kernels/cuda_run.h"
#include "kernels/cuda_stream.h"

namespace holdfast::kernels {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::Tiles::kThreads)
    RunWarps(const __grid_constant__ Kernel kernel) {
  // Rows of a tile start on 256 bytes: addresses within a row are made by XOR.
  extern __shared__ __align__(1024) unsigned char warps_shared[];
  WarpBlock block(warps_shared);
  kernel(block, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
         static_cast<int>(gridDim.y));
}

struct AttentionRunner {
  cudaStream_t stream;

  template <typename Kernel>
  void operator()(const Kernel& kernel, int64_t blocks) const {
    RunOnDevice(stream, kernel, blocks);
  }

  template <typename Kernel>
  void Warps(const Kernel& kernel) const {
    const AttentionGrid grid = kernel.Grid();
    if (grid.x == 0 || grid.y == 0) return;
    KERNEL_CHECK(grid.x < (int64_t{1} << 31) && grid.y < (1 << 16),
                 "attention of %d x %d blocks", grid.x, grid.y);
    if (!LeaveToCheckLaunch(cudaFuncSetAttribute(
            RunWarps<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            Kernel::kSharedBytes))) {
      return;
    }
    RunWarps<Kernel>
        <<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)),
           Kernel::Tiles::kThreads, Kernel::kSharedBytes, stream>>>(kernel);
  }
};

}  // namespace

template <typename T>
void AttentionForwardCuda(CudaStream& stream, const AttentionArgs<T>& args) {
  RunAttentionForward(args, AttentionRunner{stream.handle()});
}

template <typename T>
void AttentionBackwardCuda(CudaStream& stream,
                           const AttentionBackwardArgs<T>& args) {
  const int64_t count = AttentionBackwardScratch<T>(args.shape);
  if (count == 0) return;
  float* const scratch = stream.Scratch<float>(count);
  if (scratch == nullptr) return;  // The device's status says so.
  RunAttentionBackward(args, scratch, AttentionRunner{stream.handle()});
}

template void AttentionForwardCuda(CudaStream&, const AttentionArgs<float>&);
template void AttentionForwardCuda(CudaStream&, const AttentionArgs<Bf16>&);
template void AttentionBackwardCuda(CudaStream&,
                                    const AttentionBackwardArgs<float>&);
template void AttentionBackwardCuda(CudaStream&,
                                    const AttentionBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
