// kernels/elementwise_cuda.cu: launches the flat kernels of
// kernels/cuda_elementwise.h.

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda_elementwise.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_result.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

template <typename T>
void AddCuda(CudaStream& stream, const T* x, const T* y, T* out,
             int64_t count) {
  RunAdd(x, y, out, count, DeviceRunner{stream.handle()});
}

template <typename T>
void ScaleCuda(CudaStream& stream, T* x, float factor, int64_t count) {
  RunScale(x, factor, count, DeviceRunner{stream.handle()});
}

template <typename T>
void AccumulateCuda(CudaStream& stream, const T* x, float* y, int64_t count) {
  RunAccumulate(x, y, count, DeviceRunner{stream.handle()});
}

template <typename From, typename To>
void CastCuda(CudaStream& stream, const From* from, To* to, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    if (from == to || count == 0) return;
    LeaveToCheckLaunch(
        cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(To),
                        cudaMemcpyDeviceToDevice, stream.handle()));
  } else {
    RunCast(from, to, count, DeviceRunner{stream.handle()});
  }
}

void ZeroBytesCuda(CudaStream& stream, void* data, int64_t bytes) {
  if (bytes == 0) return;
  LeaveToCheckLaunch(
      cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream.handle()));
}

void BlockSumsOfSquaresCuda(CudaStream& stream, const float* x, int64_t count,
                            double* block_sums) {
  RunBlockSums(x, count, block_sums, DeviceRunner{stream.handle()});
}

void SumOfSquaresCuda(CudaStream& stream, const float* x, int64_t count,
                      double* total) {
  double* sums =
      stream.Scratch<double>(std::max<int64_t>(SumOfSquaresScratch(count), 1));
  if (sums == nullptr) return;
  RunSumOfSquares(x, count, total, sums, DeviceRunner{stream.handle()});
}

template void AddCuda(CudaStream&, const float*, const float*, float*, int64_t);
template void AddCuda(CudaStream&, const Bf16*, const Bf16*, Bf16*, int64_t);
template void ScaleCuda(CudaStream&, float*, float, int64_t);
template void ScaleCuda(CudaStream&, Bf16*, float, int64_t);
template void AccumulateCuda(CudaStream&, const float*, float*, int64_t);
template void AccumulateCuda(CudaStream&, const Bf16*, float*, int64_t);
template void CastCuda(CudaStream&, const float*, float*, int64_t);
template void CastCuda(CudaStream&, const float*, Bf16*, int64_t);
template void CastCuda(CudaStream&, const Bf16*, float*, int64_t);
template void CastCuda(CudaStream&, const Bf16*, Bf16*, int64_t);

}  // namespace holdfast::kernels
