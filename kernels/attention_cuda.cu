// kernels/attention_cuda.cu: launches attention on a GPU: on the tensor cores
// where they take the shape (Bf16, heads of up to 128 elements, everything on
// 16 bytes), else by the plain kernels, up to kCudaHeadDimMax.

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/check.h"
#include "kernels/cuda_attention.h"
#include "kernels/cuda_attention_backward.h"
#include "kernels/cuda_attention_forward.h"
#include "kernels/cuda_attention_plain.h"
#include "kernels/cuda_attention_plain_backward.h"
#include "kernels/cuda_launch.h"
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

template <typename Kernel>
void LaunchWarps(CudaStream& stream, const Kernel& kernel) {
  const AttentionGrid grid = Kernel::Grid(kernel.args.shape);
  if (grid.x == 0 || grid.y == 0) return;
  KERNEL_CHECK(grid.x < (int64_t{1} << 31) && grid.y < (1 << 16),
               "attention of %d x %d blocks", grid.x, grid.y);
  cudaFuncSetAttribute(RunWarps<Kernel>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Kernel::kSharedBytes);
  RunWarps<Kernel>
      <<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)),
         Kernel::Tiles::kThreads, Kernel::kSharedBytes, stream.handle()>>>(
          kernel);
}

template <typename Kernel>
void LaunchBlocks(CudaStream& stream, const Kernel& kernel) {
  RunOnDevice(stream.handle(), kernel, kernel.Blocks());
}

// One matrix of the arguments.
struct Matrix {
  const void* at;
  int64_t stride;
};

// Heads of `head_dim` elements T start on 16 bytes in every row of all.
template <typename T>
bool OnSixteenBytes(int64_t head_dim, std::initializer_list<Matrix> matrices) {
  constexpr int64_t kElements = 16 / sizeof(T);
  bool on = head_dim % kElements == 0;
  for (const Matrix& matrix : matrices) {
    on = on && reinterpret_cast<uintptr_t>(matrix.at) % 16 == 0 &&
         matrix.stride % kElements == 0;
  }
  return on;
}

// The kernels count rows, and rows times heads, in 32 bits.
void CheckSizes(const AttentionShape& shape) {
  KERNEL_CHECK(shape.head_dim <= kCudaHeadDimMax,
               "attention on a GPU takes heads of up to %d elements, not %d",
               kCudaHeadDimMax, shape.head_dim);
  KERNEL_CHECK(shape.sequences * shape.positions * shape.heads <
                   (int64_t{1} << 31) - kAttentionTile,
               "attention on a GPU: %d sequences of %d positions, %d heads",
               shape.sequences, shape.positions, shape.heads);
}

template <typename T, int kWidth>
void PlainForward(CudaStream& stream, const AttentionArgs<T>& args) {
  LaunchBlocks(stream, AttentionForwardPlain<T, kWidth>{.args = args});
}

template <typename T, int kWidth>
void PlainBackward(CudaStream& stream, const AttentionBackwardArgs<T>& args,
                   const float* delta) {
  LaunchBlocks(stream, AttentionBackwardPlain<T, kWidth, false>{
                           .args = args, .delta = delta});
  LaunchBlocks(stream, AttentionBackwardPlain<T, kWidth, true>{.args = args,
                                                               .delta = delta});
}

template <int kHeadDim>
void WarpsBackward(CudaStream& stream, const AttentionBackwardArgs<Bf16>& args,
                   const float* delta) {
  LaunchWarps(stream,
              AttentionBackwardBlock<QueryGradientTiles<kHeadDim>, false>{
                  .args = args, .delta = delta});
  LaunchWarps(stream, AttentionBackwardBlock<KeyGradientTiles<kHeadDim>, true>{
                          .args = args, .delta = delta});
}

}  // namespace

template <typename T>
void AttentionForwardCuda(CudaStream& stream, const AttentionArgs<T>& args) {
  CheckSizes(args.shape);
  const int64_t head_dim = args.shape.head_dim;
  if constexpr (std::is_same_v<T, Bf16>) {
    if (head_dim <= 128 &&
        OnSixteenBytes<T>(head_dim, {{args.q, args.q_stride},
                                     {args.k, args.k_stride},
                                     {args.v, args.v_stride},
                                     {args.out, args.out_stride}})) {
      if (head_dim <= 64) {
        LaunchWarps(stream,
                    AttentionForwardBlock<ForwardTiles<64>>{.args = args});
      } else {
        LaunchWarps(stream,
                    AttentionForwardBlock<ForwardTiles<128>>{.args = args});
      }
      return;
    }
  }
  if (head_dim <= 64) {
    PlainForward<T, 64>(stream, args);
  } else if (head_dim <= 128) {
    PlainForward<T, 128>(stream, args);
  } else {
    PlainForward<T, 256>(stream, args);
  }
}

template <typename T>
void AttentionBackwardCuda(CudaStream& stream,
                           const AttentionBackwardArgs<T>& args) {
  const AttentionShape& shape = args.shape;
  CheckSizes(shape);
  const int64_t rows = shape.sequences * shape.positions * shape.heads;
  if (rows == 0) return;
  float* const delta = stream.Scratch<float>(rows);
  if (delta == nullptr) return;  // The device's status says so.
  if (OnSixteenBytes<T>(shape.head_dim, {{args.out, args.out_stride},
                                         {args.dout, args.dout_stride}})) {
    LaunchBlocks(stream, AttentionDelta<T, true>{.args = args, .delta = delta});
  } else {
    LaunchBlocks(stream,
                 AttentionDelta<T, false>{.args = args, .delta = delta});
  }
  if constexpr (std::is_same_v<T, Bf16>) {
    if (shape.head_dim <= 128 &&
        OnSixteenBytes<T>(shape.head_dim, {{args.q, args.q_stride},
                                           {args.k, args.k_stride},
                                           {args.v, args.v_stride},
                                           {args.dout, args.dout_stride},
                                           {args.dq, args.dq_stride},
                                           {args.dk, args.dk_stride},
                                           {args.dv, args.dv_stride}})) {
      if (shape.head_dim <= 64) {
        WarpsBackward<64>(stream, args, delta);
      } else {
        WarpsBackward<128>(stream, args, delta);
      }
      return;
    }
  }
  if (shape.head_dim <= 64) {
    PlainBackward<T, 64>(stream, args, delta);
  } else if (shape.head_dim <= 128) {
    PlainBackward<T, 128>(stream, args, delta);
  } else {
    PlainBackward<T, 256>(stream, args, delta);
  }
}

template void AttentionForwardCuda(CudaStream&, const AttentionArgs<float>&);
template void AttentionForwardCuda(CudaStream&, const AttentionArgs<Bf16>&);
template void AttentionBackwardCuda(CudaStream&,
                                    const AttentionBackwardArgs<float>&);
template void AttentionBackwardCuda(CudaStream&,
                                    const AttentionBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
