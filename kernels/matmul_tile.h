// kernels/matmul_tile.h: one serial product of a small matrix. Internal to
// kernels/: Matmul cuts its work into these, and attention is made of them.

#ifndef HOLDFAST_KERNELS_MATMUL_TILE_H_
#define HOLDFAST_KERNELS_MATMUL_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/matmul.h"

namespace holdfast::kernels {

// How Bf16 products are computed. The processor decides; tests choose.
enum class Bf16Path : uint8_t {
  kNative,     // By the library, on instructions for Bf16.
  kConverted,  // Blocks of A and B are widened to FP32 and multiplied there.
};
Bf16Path ProcessorBf16Path();

// C (+)= op(A) op(B) as Matmul defines it, all of it on the calling thread.
// `c` holds FP32 at ldc. Equal shapes give equal bits on every thread.
//
// The library's plan for each new shape is made on first use by each thread,
// some 100 us to 10 ms, and kept by the thread.
template <typename T>
void TileProduct(const MatmulArgs<T, float>& args,
                 Bf16Path path = ProcessorBf16Path());

// At least `count` floats of this thread, aligned to 64 bytes, kept between
// calls and counted by MatmulScratchBytes(). One use of a slot at a time.
enum class ScratchSlot : uint8_t {
  kTile,
  kWidenedA,
  kWidenedB,
  kAttention,
  kLibrary,
  kCount
};
float* ThreadScratch(ScratchSlot slot, size_t count);

// Matmul with the path chosen.
template <typename T, typename Out>
void MatmulOnPath(Stream& stream, const MatmulArgs<T, Out>& args,
                  Bf16Path path);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_MATMUL_TILE_H_
