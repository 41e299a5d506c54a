// kernels/adamw_cuda.cu: launches the update of kernels/cuda_adamw.h.

#include "kernels/cuda_adamw.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

template <typename T>
void AdamWCuda(CudaStream& stream, const AdamWArgs<T>& args) {
  RunAdamW(args, DeviceRunner{stream.handle()});
}

template void AdamWCuda(CudaStream&, const AdamWArgs<float>&);
template void AdamWCuda(CudaStream&, const AdamWArgs<Bf16>&);

}  // namespace holdfast::kernels
