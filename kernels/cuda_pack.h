// kernels/cuda_pack.h: loads and stores of several elements at once, and the
// cutting of flat arrays and matrices into packs for blocks of GPU threads.
//
// The GPU moves up to 16 bytes a thread and instruction, from addresses that
// are multiples of the size; anything else is an error there. So a kernel
// exists for packs and, where pointers or strides do not allow them, for single
// elements; the choice is made once per launch. On the host a misaligned pack
// traps as well.
//
// Indices are 64 bits wide; a row is shorter than 2^31 elements.

#ifndef HOLDFAST_KERNELS_CUDA_PACK_H_
#define HOLDFAST_KERNELS_CUDA_PACK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

template <typename T, int kCount>
struct Pack {
  T at[kCount];
};

// What a pack's address must be a multiple of.
template <typename T, int kCount>
HF_HOST_DEVICE constexpr size_t PackAlignment() {
  return kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16;
}

template <int kCount, typename T>
bool PackAligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % PackAlignment<T, kCount>() == 0;
}

#ifdef __CUDA_ARCH__
namespace pack_internal {
template <size_t kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};
}  // namespace pack_internal
#endif

template <int kCount, typename T>
HF_HOST_DEVICE inline Pack<T, kCount> LoadPack(const T* from) {
  Pack<T, kCount> pack;
#ifdef __CUDA_ARCH__
  using Word = typename pack_internal::Word<PackAlignment<T, kCount>()>::Type;
  constexpr int kWords = static_cast<int>(sizeof(pack) / sizeof(Word));
  Word words[kWords];
  HF_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = reinterpret_cast<const Word*>(from)[i];
  }
  memcpy(&pack, words, sizeof(pack));
#else
  if (!PackAligned<kCount>(from)) __builtin_trap();
  std::memcpy(static_cast<void*>(&pack), from, sizeof(pack));
#endif
  return pack;
}

template <int kCount, typename T>
HF_HOST_DEVICE inline void StorePack(const Pack<T, kCount>& pack, T* to) {
#ifdef __CUDA_ARCH__
  using Word = typename pack_internal::Word<PackAlignment<T, kCount>()>::Type;
  constexpr int kWords = static_cast<int>(sizeof(pack) / sizeof(Word));
  Word words[kWords];
  memcpy(words, &pack, sizeof(pack));
  HF_UNROLL
  for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
#else
  if (!PackAligned<kCount>(to)) __builtin_trap();
  std::memcpy(static_cast<void*>(to), &pack, sizeof(pack));
#endif
}

HF_HOST_DEVICE constexpr int64_t CeilDivide(int64_t count, int64_t by) {
  return (count + by - 1) / by;
}

// An operation on elements [at, at + kCount) for every `at`, flat.
//
//   struct Op { template <int kCount> HF_HOST_DEVICE void Run(int64_t at)
//   const;
//
// runs with kPack, and with 1 for the rest that fills no pack. One pack a
// thread, until the grid is as large as it gets.
template <typename Operation, int kPack>
struct FlatKernel {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  Operation operation;
  int64_t count;

  int64_t blocks() const {
    return CeilDivide(count, int64_t{kPack} * kThreads);
  }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    block.ForEachOnly([&](int thread) {
      const int64_t first = block.index() * kThreads + thread;
      const int64_t stride = block.count() * kThreads;
      const int64_t packs = count / kPack;
      for (int64_t p = first; p < packs; p += stride) {
        operation.template Run<kPack>(p * kPack);
      }
      for (int64_t i = packs * kPack + first; i < count; i += stride) {
        operation.template Run<1>(i);
      }
    });
  }
};

// Packs of kPack where `aligned`, single elements otherwise.
template <int kPack, typename Operation, typename Runner>
void RunFlat(const Operation& operation, int64_t count, bool aligned,
             const Runner& run) {
  if (aligned) {
    const FlatKernel<Operation, kPack> kernel{operation, count};
    run(kernel, kernel.blocks());
  } else {
    const FlatKernel<Operation, 1> kernel{operation, count};
    run(kernel, kernel.blocks());
  }
}

// The same over a matrix: Run(row, pack) for every row and for packs [0,
// row_packs) of it. Threads of a block take a power of two of neighbouring
// packs, and several rows where a row is short, so nobody divides per thread.
template <typename Operation>
struct RowsKernel {
  static constexpr int kThreads = 256;
  static constexpr int kLogThreads = 8;
  static constexpr int kSharedBytes = 0;
  Operation operation;
  int64_t rows;
  int64_t row_packs;
  int log_lanes;  // Packs of a row in one tile, as a power of two.

  static RowsKernel Of(const Operation& operation, int64_t rows,
                       int64_t row_packs) {
    int log_lanes = 0;
    while (log_lanes < kLogThreads && int64_t{1} << log_lanes < row_packs) {
      ++log_lanes;
    }
    return RowsKernel{operation, rows, row_packs, log_lanes};
  }

  int64_t tile_rows() const { return int64_t{kThreads} >> log_lanes; }
  int64_t row_tiles() const {
    return CeilDivide(row_packs, int64_t{1} << log_lanes);
  }
  int64_t blocks() const { return CeilDivide(rows, tile_rows()) * row_tiles(); }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t rows_of_tile = int64_t{kThreads} >> log_lanes;
    const int64_t lanes = int64_t{1} << log_lanes;
    const int64_t across = (row_packs + lanes - 1) >> log_lanes;
    const int64_t tiles = CeilDivide(rows, rows_of_tile) * across;
    block.ForEachOnly([&](int thread) {
      for (int64_t t = block.index(); t < tiles; t += block.count()) {
        const int64_t down = t / across;
        const int64_t row = down * rows_of_tile + (thread >> log_lanes);
        const int64_t pack =
            (t - down * across) * lanes + (thread & (lanes - 1));
        if (row < rows && pack < row_packs) operation.Run(row, pack);
      }
    });
  }
};

template <typename Operation, typename Runner>
void RunRows(const Operation& operation, int64_t rows, int64_t row_packs,
             const Runner& run) {
  if (rows == 0 || row_packs == 0) return;
  const auto kernel = RowsKernel<Operation>::Of(operation, rows, row_packs);
  run(kernel, kernel.blocks());
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_PACK_H_
