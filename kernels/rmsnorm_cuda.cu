// kernels/rmsnorm_cuda.cu: launches the norms of kernels/cuda_rmsnorm.h.

#include "kernels/cuda_launch.h"
#include "kernels/cuda_rmsnorm.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

template <typename T>
void RmsNormForwardCuda(CudaStream& stream, const RmsNormArgs<T>& args) {
  RunRmsNormForward(args, DeviceRunner{stream.handle()});
}

template <typename T>
void RmsNormBackwardCuda(CudaStream& stream,
                         const RmsNormBackwardArgs<T>& args) {
  float* partial = nullptr;
  if (const int64_t floats = RmsNormBackwardScratch(args); floats > 0) {
    partial = stream.Scratch<float>(floats);
    if (partial == nullptr) return;
  }
  RunRmsNormBackward(args, partial, DeviceRunner{stream.handle()});
}

template void RmsNormForwardCuda(CudaStream&, const RmsNormArgs<float>&);
template void RmsNormForwardCuda(CudaStream&, const RmsNormArgs<Bf16>&);
template void RmsNormBackwardCuda(CudaStream&,
                                  const RmsNormBackwardArgs<float>&);
template void RmsNormBackwardCuda(CudaStream&,
                                  const RmsNormBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
