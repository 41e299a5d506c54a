// kernels/cuda_attention_plain.h: attention without tensor cores, for FP32 and
// for what the fast path does not take: heads of up to kWidth elements, of any
// size and alignment.
//
// A block has kRows rows that stay and passes kRows rows of the other side by
// them, all in shared memory as FP32. Eight threads share a row: in the
// products over head_dim each has every eighth column of the tile, in the sums
// over the tile every eighth group of four columns of head_dim. The order of
// sums is fixed; nothing is added by two blocks.
//
// Against the processor's version: FP32 within 1e-5 of the largest element
// (sums of up to `positions` terms in another order), Bf16 as
// kernels/cuda_attention.h says. A NaN of a key or value reaches later
// positions, and earlier ones of its own tile of kRows.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_H_

#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

// The largest head_dim of the GPU's attention.
inline constexpr int64_t kCudaHeadDimMax = 256;

namespace attention {

struct alignas(16) FourFloats {
  float at[4];
};

// What forward and backward share: a tile of kRows rows in shared memory.
template <typename T, int kWidth>
struct PlainTiles {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 32;
  static constexpr int kPerRow = kThreads / kRows;
  static constexpr int kColumns = kRows / kPerRow;  // Of the tile, per thread.
  static constexpr int kFours = kWidth / (4 * kPerRow);
  // Rows start 4 banks apart, so that eight of them lie on all 32.
  static constexpr int kStride = kWidth + 4;
  static constexpr int kTileBytes = kRows * kStride * 4;
  static constexpr int kWeightStride = kRows + 4;
  static constexpr int kWeightBytes = kRows * kWeightStride * 4;
  static_assert(kPerRow == 8 && kFours > 0);

  // Rows beyond `rows` and columns beyond `head_dim` become zeros.
  HF_HOST_DEVICE static void Load(int thread, float* tile, const T* from,
                                  int64_t stride, int64_t rows,
                                  int64_t head_dim) {
    for (int i = thread; i < kRows * kWidth; i += kThreads) {
      const int row = i / kWidth;
      const int column = i % kWidth;
      tile[row * kStride + column] = row < rows && column < head_dim
                                         ? ToFloat(from[row * stride + column])
                                         : 0.0f;
    }
  }

  // The thread's columns of its row of X Y^T.
  HF_HOST_DEVICE static void Multiply(int thread, const float* x,
                                      const float* y,
                                      float (&result)[kColumns]) {
    const float* row = x + thread / kPerRow * kStride;
    HF_UNROLL
    for (int j = 0; j < kColumns; ++j) result[j] = 0.0f;
    for (int c = 0; c < kWidth; c += 4) {
      const auto left = *reinterpret_cast<const FourFloats*>(row + c);
      HF_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const auto right = *reinterpret_cast<const FourFloats*>(
            y + Column(thread, j) * kStride + c);
        HF_UNROLL
        for (int i = 0; i < 4; ++i) result[j] += left.at[i] * right.at[i];
      }
    }
  }
  HF_HOST_DEVICE static int Column(int thread, int j) {
    return thread % kPerRow + j * kPerRow;
  }

  // sums += W Y: the thread's elements of its row.
  HF_HOST_DEVICE static void AddWeighted(int thread, const float* weights,
                                         const float* y,
                                         FourFloats (&sums)[kFours]) {
    const float* row = weights + thread / kPerRow * kWeightStride;
    for (int c = 0; c < kRows; ++c) {
      const float weight = row[c];
      HF_UNROLL
      for (int four = 0; four < kFours; ++four) {
        const auto value = *reinterpret_cast<const FourFloats*>(
            y + c * kStride + FirstElement(thread, four));
        HF_UNROLL
        for (int i = 0; i < 4; ++i) sums[four].at[i] += weight * value.at[i];
      }
    }
  }
  HF_HOST_DEVICE static int FirstElement(int thread, int four) {
    return (four * kPerRow + thread % kPerRow) * 4;
  }

  HF_HOST_DEVICE static void Clear(FourFloats (&sums)[kFours]) {
    HF_UNROLL
    for (int four = 0; four < kFours; ++four) {
      HF_UNROLL
      for (int i = 0; i < 4; ++i) sums[four].at[i] = 0.0f;
    }
  }

  HF_HOST_DEVICE static void Store(int thread, const FourFloats (&sums)[kFours],
                                   float factor, T* to, int64_t stride,
                                   int64_t rows, int64_t head_dim) {
    const int row = thread / kPerRow;
    if (row >= rows) return;
    HF_UNROLL
    for (int four = 0; four < kFours; ++four) {
      HF_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = FirstElement(thread, four) + i;
        if (column < head_dim) {
          to[row * stride + column] = FromFloat<T>(sums[four].at[i] * factor);
        }
      }
    }
  }
};

}  // namespace attention

template <typename T, int kWidth>
struct AttentionForwardPlain {
  using Tiles = attention::PlainTiles<T, kWidth>;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kSharedBytes =
      3 * Tiles::kTileBytes + Tiles::kWeightBytes;

  AttentionArgs<T> args;

  int64_t Blocks() const {
    return args.shape.sequences * args.shape.heads * TilesOfHead();
  }

  // Blocks of late queries, which see the most keys, come first.
  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t heads = args.shape.sequences * args.shape.heads;
    const int64_t tiles = TilesOfHead();
    for (int64_t i = block.index(); i < heads * tiles; i += block.count()) {
      QueryTile(block, i % heads, (tiles - 1 - i / heads) * Tiles::kRows);
    }
  }

 private:
  struct RowState {
    attention::FourFloats out[Tiles::kFours];
    float scores[Tiles::kColumns];
    float max;
  };

  HF_HOST_DEVICE int64_t TilesOfHead() const {
    return (args.shape.positions + Tiles::kRows - 1) / Tiles::kRows;
  }

  template <typename Block>
  HF_HOST_DEVICE void QueryTile(Block& block, int64_t x, int64_t q0) const {
    const AttentionShape& shape = args.shape;
    const int64_t first_row = x / shape.heads * shape.positions;
    const int64_t head = x % shape.heads;
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    float* const queries = block.template shared<float>(0);
    float* const keys = block.template shared<float>(Tiles::kTileBytes);
    float* const values = block.template shared<float>(2 * Tiles::kTileBytes);
    float* const weights = block.template shared<float>(3 * Tiles::kTileBytes);
    auto state = block.template PerThread<RowState>();
    auto sum = block.template PerThread<float>();
    auto tile_max = block.template PerThread<float>();
    const int64_t rows = shape.positions - q0;

    block.ForEach([&](int thread) {
      Tiles::Load(
          thread, queries,
          args.q + (first_row + q0) * args.q_stride + head * shape.head_dim,
          args.q_stride, rows, shape.head_dim);
      Tiles::Clear(state[thread].out);
      state[thread].max = -__builtin_huge_valf();
      sum[thread] = 0.0f;
    });
    for (int64_t k0 = 0; k0 <= q0; k0 += Tiles::kRows) {
      const int64_t row_at = first_row + k0;
      block.ForEach([&](int thread) {
        Tiles::Load(thread, keys,
                    args.k + row_at * args.k_stride + kv_head * shape.head_dim,
                    args.k_stride, shape.positions - k0, shape.head_dim);
        Tiles::Load(thread, values,
                    args.v + row_at * args.v_stride + kv_head * shape.head_dim,
                    args.v_stride, shape.positions - k0, shape.head_dim);
      });
      block.ForEachOnly([&](int thread) {
        auto& scores = state[thread].scores;
        Tiles::Multiply(thread, queries, keys, scores);
        const int64_t row = q0 + thread / Tiles::kPerRow;
        tile_max[thread] = -__builtin_huge_valf();
        HF_UNROLL
        for (int j = 0; j < Tiles::kColumns; ++j) {
          if (k0 + Tiles::Column(thread, j) > row) {
            scores[j] = -__builtin_huge_valf();
          }
          tile_max[thread] = Maximum()(tile_max[thread], scores[j]);
        }
      });
      block.template Reduce<Tiles::kPerRow>(tile_max, Maximum());
      block.ForEach([&](int thread) {
        RowState& row = state[thread];
        const float max = Maximum()(tile_max[thread] * shape.scale, row.max);
        const float rescale = expf(row.max - max);
        row.max = max;
        sum[thread] *= rescale;
        HF_UNROLL
        for (int four = 0; four < Tiles::kFours; ++four) {
          HF_UNROLL
          for (int i = 0; i < 4; ++i) row.out[four].at[i] *= rescale;
        }
        HF_UNROLL
        for (int j = 0; j < Tiles::kColumns; ++j) {
          const float p = expf(row.scores[j] * shape.scale - max);
          sum[thread] += p;
          weights[thread / Tiles::kPerRow * Tiles::kWeightStride +
                  Tiles::Column(thread, j)] = ToFloat(FromFloat<T>(p));
        }
      });
      block.ForEach([&](int thread) {
        Tiles::AddWeighted(thread, weights, values, state[thread].out);
      });
    }
    block.template Reduce<Tiles::kPerRow>(sum, Plus());
    block.ForEach([&](int thread) {
      const int row = thread / Tiles::kPerRow;
      Tiles::Store(
          thread, state[thread].out, 1.0f / sum[thread],
          args.out + (first_row + q0) * args.out_stride + head * shape.head_dim,
          args.out_stride, rows, shape.head_dim);
      if (thread % Tiles::kPerRow == 0 && row < rows) {
        args.lse[x * shape.positions + q0 + row] =
            state[thread].max + logf(sum[thread]);
      }
    });
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_H_
