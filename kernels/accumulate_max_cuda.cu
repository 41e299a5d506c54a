// kernels/accumulate_max_cuda.cu: AccumulateMax on a GPU.

#include "kernels/cuda_accumulate_max.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

void AccumulateMaxCuda(CudaStream& stream, const float* x, float* y,
                       int64_t count) {
  constexpr int kThreads = AccumulateMaxKernel::kThreads;
  RunOnDevice(stream.handle(), AccumulateMaxKernel{x, y, count},
              (count + kThreads - 1) / kThreads);
}

}  // namespace holdfast::kernels
