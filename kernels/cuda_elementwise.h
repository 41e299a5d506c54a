// kernels/cuda_elementwise.h: the flat loops of elementwise.h for a GPU.
//
// Against the CPU: bit-equal, NaNs excepted (a GPU has one NaN). Bytes moved
// per element, all of them once:
//
//   Add          3 sizeof(T)                Scale   2 sizeof(T)
//   Accumulate   sizeof(T) + 8              Cast    sizeof(From) + sizeof(To)
//   BlockSumsOfSquares   4
//
// The order of BlockSumsOfSquares is the stated one, in FP64 products and sums
// that are never fused. Two threads do a block of the state, four of its eight
// partial sums each, a 16-byte load a step.

#ifndef HOLDFAST_KERNELS_CUDA_ELEMENTWISE_H_
#define HOLDFAST_KERNELS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_math.h"
#include "kernels/cuda_pack.h"
#include "kernels/elementwise.h"

namespace holdfast::kernels {

// Elements in a flat kernel's pack: 16 bytes where all is of 2 bytes, or where
// something is of 4.
template <typename T>
inline constexpr int kFlatPack = 16 / sizeof(T);

template <typename T>
struct AddOp {
  const T* x;
  const T* y;
  T* out;

  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    const auto a = LoadPack<kCount>(x + at);
    auto b = LoadPack<kCount>(y + at);
    HF_UNROLL
    for (int i = 0; i < kCount; ++i) {
      b.at[i] = FromFloat<T>(ToFloat(a.at[i]) + ToFloat(b.at[i]));
    }
    StorePack(b, out + at);
  }
};

template <typename T, typename Runner>
void RunAdd(const T* x, const T* y, T* out, int64_t count, const Runner& run) {
  constexpr int kPack = kFlatPack<T>;
  RunFlat<kPack>(
      AddOp<T>{x, y, out}, count,
      PackAligned<kPack>(x) && PackAligned<kPack>(y) && PackAligned<kPack>(out),
      run);
}

template <typename T>
struct ScaleOp {
  T* x;
  float factor;

  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    auto a = LoadPack<kCount>(x + at);
    HF_UNROLL
    for (int i = 0; i < kCount; ++i) {
      a.at[i] = FromFloat<T>(ToFloat(a.at[i]) * factor);
    }
    StorePack(a, x + at);
  }
};

template <typename T, typename Runner>
void RunScale(T* x, float factor, int64_t count, const Runner& run) {
  constexpr int kPack = kFlatPack<T>;
  RunFlat<kPack>(ScaleOp<T>{x, factor}, count, PackAligned<kPack>(x), run);
}

template <typename T>
struct AccumulateOp {
  const T* x;
  float* y;

  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    const auto a = LoadPack<kCount>(x + at);
    auto sum = LoadPack<kCount>(y + at);
    HF_UNROLL
    for (int i = 0; i < kCount; ++i) sum.at[i] += ToFloat(a.at[i]);
    StorePack(sum, y + at);
  }
};

template <typename T, typename Runner>
void RunAccumulate(const T* x, float* y, int64_t count, const Runner& run) {
  constexpr int kPack = kFlatPack<float>;
  RunFlat<kPack>(AccumulateOp<T>{x, y}, count,
                 PackAligned<kPack>(x) && PackAligned<kPack>(y), run);
}

template <typename From, typename To>
struct CastOp {
  const From* from;
  To* to;

  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    const auto a = LoadPack<kCount>(from + at);
    Pack<To, kCount> b;
    HF_UNROLL
    for (int i = 0; i < kCount; ++i) b.at[i] = FromFloat<To>(ToFloat(a.at[i]));
    StorePack(b, to + at);
  }
};

// Of different types; the same type is a copy, which needs no kernel.
template <typename From, typename To, typename Runner>
void RunCast(const From* from, To* to, int64_t count, const Runner& run) {
  constexpr int kPack = kFlatPack<float>;
  RunFlat<kPack>(CastOp<From, To>{from, to}, count,
                 PackAligned<kPack>(from) && PackAligned<kPack>(to), run);
}

template <bool kPacked>
struct BlockSumsKernel {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kSums = 4;  // Of a thread.
  static constexpr int64_t kPerBlock = kThreads / 2;
  const float* x;
  int64_t count;
  double* block_sums;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t blocks = CeilDivide(count, kBlockElements);
    for (int64_t first = block.index() * kPerBlock; first < blocks;
         first += block.count() * kPerBlock) {
      auto sum0 = block.template PerThread<double>();
      auto sum1 = block.template PerThread<double>();
      auto sum2 = block.template PerThread<double>();
      auto sum3 = block.template PerThread<double>();
      block.ForEachOnly([&](int thread) {
        double sums[kSums] = {};
        const int64_t b = first + thread / 2;
        if (b < blocks) AddSquares(b, thread % 2, sums);
        sum0[thread] = sums[0];
        sum1[thread] = sums[1];
        sum2[thread] = sums[2];
        sum3[thread] = sums[3];
      });
      // Thread 2 b has partial sums 0 to 3 of a block, the next one 4 to 7.
      block.template Reduce<2>(sum0, Plus{});
      block.template Reduce<2>(sum1, Plus{});
      block.template Reduce<2>(sum2, Plus{});
      block.template Reduce<2>(sum3, Plus{});
      block.ForEachOnly([&](int thread) {
        const int64_t b = first + thread / 2;
        if (thread % 2 != 0 || b >= blocks) return;
        block_sums[b] =
            (sum0[thread] + sum2[thread]) + (sum1[thread] + sum3[thread]);
      });
    }
  }

 private:
  HF_HOST_DEVICE void AddSquares(int64_t b, int half, double* sums) const {
    const float* from = x + b * kBlockElements;
    const int64_t left = count - b * kBlockElements;
    const int length =
        static_cast<int>(left < kBlockElements ? left : kBlockElements);
    int i = half * kSums;
    // Eight loads in flight: nothing is stored between them.
    HF_UNROLL_BY(8)
    for (; i + kSums <= length; i += 2 * kSums) {
      float values[kSums];
      if constexpr (kPacked) {
        const auto pack = LoadPack<kSums>(from + i);
        HF_UNROLL
        for (int j = 0; j < kSums; ++j) values[j] = pack.at[j];
      } else {
        HF_UNROLL
        for (int j = 0; j < kSums; ++j) values[j] = from[i + j];
      }
      HF_UNROLL
      for (int j = 0; j < kSums; ++j) {
        const double value = values[j];
        sums[j] = AddRn(sums[j], MulRn(value, value));
      }
    }
    HF_UNROLL
    for (int j = 0; j < kSums; ++j) {
      if (i + j >= length) break;
      const double value = from[i + j];
      sums[j] = AddRn(sums[j], MulRn(value, value));
    }
  }
};

template <typename Runner>
void RunBlockSums(const float* x, int64_t count, double* block_sums,
                  const Runner& run) {
  const int64_t blocks = CeilDivide(BlockCount(count), 64);
  static_assert(BlockSumsKernel<true>::kPerBlock == 64);
  if (blocks == 0) return;
  if (PackAligned<4>(x)) {
    run(BlockSumsKernel<true>{x, count, block_sums}, blocks);
  } else {
    run(BlockSumsKernel<false>{x, count, block_sums}, blocks);
  }
}

// *total = (0 where `begins`, else *total) + sums[0] + sums[1] + ..., one after
// the other: the order is the answer's bits, so one thread adds. About 8 ns a
// sum, 4 ms for a billion elements.
struct SerialSumKernel {
  static constexpr int kThreads = 32;
  static constexpr int kSharedBytes = 0;
  const double* sums;
  int64_t count;
  bool begins;
  double* total;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    block.ForEachOnly([&](int thread) {
      if (thread != 0 || block.index() != 0) return;
      double sum = begins ? 0.0 : *total;
      HF_UNROLL_BY(16)
      for (int64_t i = 0; i < count; ++i) sum += sums[i];
      *total = sum;
    });
  }
};

// Blocks whose sums are kept at a time: 8 MiB of scratch at most.
inline constexpr int64_t kSumWindowBlocks = int64_t{1} << 20;

inline int64_t SumOfSquaresScratch(int64_t count) {  // in doubles
  return std::min(BlockCount(count), kSumWindowBlocks);
}

template <typename Runner>
void RunSumOfSquares(const float* x, int64_t count, double* total,
                     double* scratch, const Runner& run,
                     int64_t window_blocks = kSumWindowBlocks) {
  int64_t at = 0;
  do {
    const int64_t length = std::min(count - at, window_blocks * kBlockElements);
    RunBlockSums(x + at, length, scratch, run);
    run(SerialSumKernel{scratch, BlockCount(length), at == 0, total}, 1);
    at += length;
  } while (at < count);
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ELEMENTWISE_H_
