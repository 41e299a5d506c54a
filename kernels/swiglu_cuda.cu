// kernels/swiglu_cuda.cu: launches the products of kernels/cuda_swiglu.h.

#include "kernels/cuda_launch.h"
#include "kernels/cuda_run.h"
#include "kernels/cuda_swiglu.h"

namespace holdfast::kernels {

template <typename T>
void SwigluForwardCuda(CudaStream& stream, const SwigluArgs<T>& args) {
  RunSwigluForward(args, DeviceRunner{stream.handle()});
}

template <typename T>
void SwigluBackwardCuda(CudaStream& stream, const SwigluBackwardArgs<T>& args) {
  RunSwigluBackward(args, DeviceRunner{stream.handle()});
}

template void SwigluForwardCuda(CudaStream&, const SwigluArgs<float>&);
template void SwigluForwardCuda(CudaStream&, const SwigluArgs<Bf16>&);
template void SwigluBackwardCuda(CudaStream&, const SwigluBackwardArgs<float>&);
template void SwigluBackwardCuda(CudaStream&, const SwigluBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
