// kernels/rope_cuda.cu: launches the turns of kernels/cuda_rope.h.

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda_device.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_result.h"
#include "kernels/cuda_rope.h"
#include "kernels/cuda_run.h"
#include "kernels/rope_table.h"

namespace holdfast::kernels {

template <typename T>
void RopeCuda(CudaStream& stream, const RopeArgs<T>& args, float direction) {
  RunRope(args, direction, DeviceRunner{stream.handle()});
}

// Once, at start: made by the host. It waits, because a system whose GPU reads
// pageable memory itself need not have copied it when the call returns.
void RopeFillTableCuda(CudaStream& stream, float* table, int64_t start,
                       int64_t positions, int64_t head_dim, float theta) {
  const size_t floats = static_cast<size_t>(RopeTableSize(positions, head_dim));
  if (floats == 0) return;
  std::vector<float> made(floats);
  FillRopeTable(made.data(), start, positions, head_dim, theta);
  if (LeaveToCheckLaunch(
          cudaMemcpyAsync(table, made.data(), floats * sizeof(float),
                          cudaMemcpyHostToDevice, stream.handle()))) {
    stream.device().Sync(stream);
  }
}

template void RopeCuda(CudaStream&, const RopeArgs<float>&, float);
template void RopeCuda(CudaStream&, const RopeArgs<Bf16>&, float);

}  // namespace holdfast::kernels
