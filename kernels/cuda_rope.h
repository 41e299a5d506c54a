// kernels/cuda_rope.h: rotary embedding for a GPU.
//
// Against the CPU: bit-equal, NaNs excepted; nothing is fused. The table is the
// CPU's own.
//
// Bytes moved per element: 2 sizeof(T); the table's row is read once for all
// heads and then from the first-level cache.

#ifndef HOLDFAST_KERNELS_CUDA_ROPE_H_
#define HOLDFAST_KERNELS_CUDA_ROPE_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_math.h"
#include "kernels/cuda_pack.h"
#include "kernels/rope.h"

namespace holdfast::kernels {

// Pack number p of a row is kPack pairs of head p / (half / kPack).
template <typename T, int kPack>
struct RopeOp {
  RopeArgs<T> args;
  float direction;

  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    const uint32_t half = static_cast<uint32_t>(args.head_dim / 2);
    const uint32_t head_packs = half / kPack;
    const uint32_t head = static_cast<uint32_t>(pack) / head_packs;
    const uint32_t i =
        (static_cast<uint32_t>(pack) - head * head_packs) * kPack;
    const float* cosines = args.table + row % args.positions * args.head_dim;
    T* low = args.x + row * args.stride + head * args.head_dim + i;
    T* high = low + half;
    const auto cosine = LoadPack<kPack>(cosines + i);
    const auto sine = LoadPack<kPack>(cosines + half + i);
    auto a = LoadPack<kPack>(low);
    auto b = LoadPack<kPack>(high);
    HF_UNROLL
    for (int j = 0; j < kPack; ++j) {
      const float x = ToFloat(a.at[j]);
      const float y = ToFloat(b.at[j]);
      const float turned = MulRn(direction, sine.at[j]);
      a.at[j] = FromFloat<T>(SubRn(MulRn(x, cosine.at[j]), MulRn(y, turned)));
      b.at[j] = FromFloat<T>(AddRn(MulRn(y, cosine.at[j]), MulRn(x, turned)));
    }
    StorePack(a, low);
    StorePack(b, high);
  }
};

template <typename T, typename Runner>
void RunRope(const RopeArgs<T>& args, float direction, const Runner& run) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t half = args.head_dim / 2;
  const int64_t rows = args.sequences * args.positions;
  if (half % kPack == 0 && args.stride % kPack == 0 &&
      PackAligned<kPack>(args.x) && PackAligned<kPack>(args.table)) {
    RunRows(RopeOp<T, kPack>{args, direction}, rows, args.heads * half / kPack,
            run);
  } else {
    RunRows(RopeOp<T, 1>{args, direction}, rows, args.heads * half, run);
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ROPE_H_
