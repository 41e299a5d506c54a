// kernels/cuda_attention_plain_backward.h: the gradients of attention without
// tensor cores (kernels/cuda_attention_plain.h says how), and the row sums that
// every backward needs.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_BACKWARD_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_BACKWARD_H_

#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda_attention_plain.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

// delta[sequence, head, position] = dout . out, over head_dim: which is the sum
// over keys of p dp. `kWide`: both lie on 16 bytes, as does every head and row.
template <typename T, bool kWide>
struct AttentionDelta {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  static constexpr int kPerHead = 8;  // Threads.
  static constexpr int kHeads = kThreads / kPerHead;
  static constexpr int kAtOnce = kWide ? 16 / sizeof(T) : 1;

  AttentionBackwardArgs<T> args;
  float* delta;

  int64_t Blocks() const { return (Count() + kHeads - 1) / kHeads; }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const AttentionShape& shape = args.shape;
    const int64_t count = Count();
    for (int64_t first = block.index() * kHeads; first < count;
         first += block.count() * kHeads) {
      auto sum = block.template PerThread<float>();
      block.ForEachOnly([&](int thread) {
        sum[thread] = 0.0f;
        const int64_t i = first + thread / kPerHead;
        if (i >= count) return;
        const int64_t row = i / shape.heads;
        const int64_t column = i % shape.heads * shape.head_dim;
        const T* out = args.out + row * args.out_stride + column;
        const T* dout = args.dout + row * args.dout_stride + column;
        for (int64_t c = thread % kPerHead * kAtOnce; c < shape.head_dim;
             c += kPerHead * kAtOnce) {
          sum[thread] += Dot(out + c, dout + c);
        }
      });
      block.template Reduce<kPerHead>(sum, Plus());
      block.ForEachOnly([&](int thread) {
        const int64_t i = first + thread / kPerHead;
        if (i >= count || thread % kPerHead != 0) return;
        const int64_t row = i / shape.heads;
        const int64_t head = i % shape.heads;
        delta[(row / shape.positions * shape.heads + head) * shape.positions +
              row % shape.positions] = sum[thread];
      });
    }
  }

 private:
  struct alignas(kAtOnce * sizeof(T)) Values {
    T at[kAtOnce];
  };

  HF_HOST_DEVICE int64_t Count() const {
    return args.shape.sequences * args.shape.positions * args.shape.heads;
  }
  HF_HOST_DEVICE static float Dot(const T* x, const T* y) {
    const Values left = *reinterpret_cast<const Values*>(x);
    const Values right = *reinterpret_cast<const Values*>(y);
    float sum = 0.0f;
    HF_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      sum += ToFloat(left.at[i]) * ToFloat(right.at[i]);
    }
    return sum;
  }
};

// dq (kKeysStay false) or dk and dv (true). With keys staying, the heads of
// their group pass one after the other, and each from the keys' own tile on.
template <typename T, int kWidth, bool kKeysStay>
struct AttentionBackwardPlain {
  using Tiles = attention::PlainTiles<T, kWidth>;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kSharedBytes =
      4 * Tiles::kTileBytes + 2 * Tiles::kWeightBytes + 8 * Tiles::kRows;

  AttentionBackwardArgs<T> args;
  const float* delta;

  int64_t Blocks() const { return StayingHeads() * TilesOfHead(); }

  // The blocks with the most to pass come first.
  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t heads = StayingHeads();
    const int64_t tiles = TilesOfHead();
    for (int64_t i = block.index(); i < heads * tiles; i += block.count()) {
      const int64_t tile = kKeysStay ? i / heads : tiles - 1 - i / heads;
      Tile(block, i % heads, tile * Tiles::kRows);
    }
  }

 private:
  struct RowState {
    attention::FourFloats first[Tiles::kFours];   // dq or dk
    attention::FourFloats second[Tiles::kFours];  // dv
  };

  HF_HOST_DEVICE int64_t StayingHeads() const {
    return args.shape.sequences *
           (kKeysStay ? args.shape.kv_heads : args.shape.heads);
  }
  HF_HOST_DEVICE int64_t TilesOfHead() const {
    return (args.shape.positions + Tiles::kRows - 1) / Tiles::kRows;
  }

  // The arrays in shared memory.
  struct Shared {
    float* staying[2];  // q and dout, or k and v
    float* passing[2];
    float* scores;   // Probabilities, rounded.
    float* dscores;  // Their gradients, scaled and rounded.
    float* lse;      // Of the tile's queries.
    float* delta;

    template <typename Block>
    HF_HOST_DEVICE explicit Shared(Block& block) {
      for (int i = 0; i < 2; ++i) {
        staying[i] = block.template shared<float>(i * Tiles::kTileBytes);
        passing[i] = block.template shared<float>((2 + i) * Tiles::kTileBytes);
      }
      constexpr int kAfter = 4 * Tiles::kTileBytes;
      scores = block.template shared<float>(kAfter);
      dscores = block.template shared<float>(kAfter + Tiles::kWeightBytes);
      lse = block.template shared<float>(kAfter + 2 * Tiles::kWeightBytes);
      delta = lse + Tiles::kRows;
    }
  };

  // Both matrices of one side, from row `at` of the sequence.
  HF_HOST_DEVICE void Load(int thread, float* const (&to)[2], bool keys,
                           int64_t sequence, int64_t head, int64_t at) const {
    const AttentionShape& shape = args.shape;
    const int64_t row = sequence * shape.positions + at;
    const int64_t rows = shape.positions - at;
    const int64_t column = head * shape.head_dim;
    const int64_t first_stride = keys ? args.k_stride : args.q_stride;
    const int64_t second_stride = keys ? args.v_stride : args.dout_stride;
    Tiles::Load(thread, to[0],
                (keys ? args.k : args.q) + row * first_stride + column,
                first_stride, rows, shape.head_dim);
    Tiles::Load(thread, to[1],
                (keys ? args.v : args.dout) + row * second_stride + column,
                second_stride, rows, shape.head_dim);
  }

  // The queries' lse and delta. Rows that do not exist get zeros: with q, dout
  // and so their products zero, they add nothing.
  HF_HOST_DEVICE void LoadRowValues(int thread, const Shared& shared,
                                    int64_t sequence, int64_t head,
                                    int64_t at) const {
    const AttentionShape& shape = args.shape;
    if (thread >= Tiles::kRows) return;
    const bool exists = at + thread < shape.positions;
    const int64_t i =
        (sequence * shape.heads + head) * shape.positions + at + thread;
    shared.lse[thread] = exists ? args.lse[i] : 0.0f;
    shared.delta[thread] = exists ? delta[i] : 0.0f;
  }

  template <typename Block>
  HF_HOST_DEVICE void Tile(Block& block, int64_t x, int64_t at) const {
    const AttentionShape& shape = args.shape;
    const Shared shared(block);
    const int64_t group = shape.heads / shape.kv_heads;
    const int64_t staying_heads = kKeysStay ? shape.kv_heads : shape.heads;
    const int64_t sequence = x / staying_heads;
    const int64_t head = x % staying_heads;
    auto state = block.template PerThread<RowState>();
    block.ForEach([&](int thread) {
      Load(thread, shared.staying, kKeysStay, sequence, head, at);
      if (!kKeysStay) LoadRowValues(thread, shared, sequence, head, at);
      Tiles::Clear(state[thread].first);
      Tiles::Clear(state[thread].second);
    });
    const int64_t first = kKeysStay ? at : 0;
    const int64_t last = kKeysStay ? shape.positions - 1 : at;
    for (int64_t i = 0; i < (kKeysStay ? group : 1); ++i) {
      const int64_t passing_head = kKeysStay ? head * group + i : head / group;
      for (int64_t other = first; other <= last; other += Tiles::kRows) {
        block.ForEach([&](int thread) {
          Load(thread, shared.passing, !kKeysStay, sequence, passing_head,
               other);
          if (kKeysStay) {
            LoadRowValues(thread, shared, sequence, passing_head, other);
          }
        });
        block.ForEach(
            [&](int thread) { Differentiate(thread, shared, at, other); });
        block.ForEach([&](int thread) {
          Tiles::AddWeighted(thread, shared.dscores, shared.passing[0],
                             state[thread].first);
          if (kKeysStay) {
            Tiles::AddWeighted(thread, shared.scores, shared.passing[1],
                               state[thread].second);
          }
        });
      }
    }
    block.ForEach([&](int thread) {
      const int64_t row = sequence * shape.positions + at;
      const int64_t rows = shape.positions - at;
      const int64_t column = head * shape.head_dim;
      const int64_t stride = kKeysStay ? args.dk_stride : args.dq_stride;
      Tiles::Store(thread, state[thread].first, 1.0f,
                   (kKeysStay ? args.dk : args.dq) + row * stride + column,
                   stride, rows, shape.head_dim);
      if (kKeysStay) {
        Tiles::Store(thread, state[thread].second, 1.0f,
                     args.dv + row * args.dv_stride + column, args.dv_stride,
                     rows, shape.head_dim);
      }
    });
  }

  HF_HOST_DEVICE void Differentiate(int thread, const Shared& shared,
                                    int64_t at, int64_t other) const {
    float scores[Tiles::kColumns];
    float dp[Tiles::kColumns];
    Tiles::Multiply(thread, shared.staying[0], shared.passing[0], scores);
    Tiles::Multiply(thread, shared.staying[1], shared.passing[1], dp);
    const int row = thread / Tiles::kPerRow;
    HF_UNROLL
    for (int j = 0; j < Tiles::kColumns; ++j) {
      const int column = Tiles::Column(thread, j);
      const int query = kKeysStay ? column : row;
      const bool future =
          kKeysStay ? at + row > other + column : other + column > at + row;
      float p = 0.0f;
      float ds = 0.0f;
      if (!future) {
        p = expf(scores[j] * args.shape.scale - shared.lse[query]);
        ds = p * (dp[j] - shared.delta[query]) * args.shape.scale;
      }
      const int i = row * Tiles::kWeightStride + column;
      shared.scores[i] = ToFloat(FromFloat<T>(p));
      shared.dscores[i] = ToFloat(FromFloat<T>(ds));
    }
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_PLAIN_BACKWARD_H_
