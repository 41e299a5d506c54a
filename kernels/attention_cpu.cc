// kernels/attention_cpu.cc: tiled attention on the CPU. The products are serial
// tile products, the rest is loops over rows of a tile.

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/matmul_tile.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kTile = kAttentionTile;

// Cuts one piece of per-thread scratch into arrays. Sizes in floats, rounded up
// so that every array starts on a cache line.
class Carver {
 public:
  explicit Carver(float* memory) : next_(memory) {}

  template <typename T>
  T* Take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += Floats<T>(count);
    return taken;
  }

  template <typename T>
  static constexpr int64_t Floats(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    return (bytes + 63) / 64 * 16;
  }

 private:
  float* next_;
};

// Columns of row r of a tile that are not in the future: all of them unless the
// tile lies on the diagonal.
inline int64_t VisibleColumns(bool diagonal, int64_t r, int64_t columns) {
  return diagonal ? std::min(r + 1, columns) : columns;
}

// `visible` rounded up to whole vectors. The loops over a row run to here, over
// columns whose scores were set to -infinity: a short scalar end of a loop
// costs more than the rest of it.
inline int64_t PaddedColumns(int64_t visible) {
  static_assert(kTile % kLanes == 0);
  return (visible + kLanes - 1) / kLanes * kLanes;
}

// The running softmax of one query tile.
struct TileSums {
  float* max;  // [kTile]
  float* sum;  // [kTile]
  float* out;  // [kTile, head_dim], not yet divided by sum
};

// Turns a tile of raw scores [rows, columns] at kTile into exponentials, and
// rescales what was summed under smaller maxima.
template <typename T>
HOLDFAST_VECTOR_CLONES void ExponentiateTile(float* scores, int64_t rows,
                                             int64_t columns, bool diagonal,
                                             float scale, int64_t head_dim,
                                             const TileSums& sums,
                                             T* probabilities) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * kTile;
    T* p = probabilities + r * kTile;
    const int64_t visible = VisibleColumns(diagonal, r, columns);
    const int64_t padded = PaddedColumns(visible);
    std::fill(row + visible, row + padded, -__builtin_inff());
    const float max = Larger(MaxInLanes(row, padded) * scale, sums.max[r]);
#pragma omp simd
    for (int64_t c = 0; c < padded; ++c) {
      row[c] = Exp(row[c] * scale - max);
      p[c] = FromFloat<T>(row[c]);
    }
    std::fill(p + padded, p + std::max(padded, columns), T{});
    const float rescale = Exp(sums.max[r] - max);
    sums.sum[r] = sums.sum[r] * rescale + SumInLanes(row, padded);
    sums.max[r] = max;
    float* out = sums.out + r * head_dim;
#pragma omp simd
    for (int64_t i = 0; i < head_dim; ++i) out[i] *= rescale;
  }
}

template <typename T>
HOLDFAST_VECTOR_CLONES void StoreRows(const float* from, int64_t rows,
                                      int64_t columns, T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      to[r * stride + c] = FromFloat<T>(from[r * columns + c]);
    }
  }
}

template <typename T>
HOLDFAST_VECTOR_CLONES void StoreDividedRows(const float* from,
                                             const float* divisors,
                                             int64_t rows, int64_t columns,
                                             T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float divisor = divisors[r];
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      to[r * stride + c] = FromFloat<T>(from[r * columns + c] / divisor);
    }
  }
}

template <typename T>
int64_t ForwardScratch(int64_t head_dim) {
  return Carver::Floats<float>(kTile * kTile) +
         Carver::Floats<T>(kTile * kTile) +
         Carver::Floats<float>(kTile * head_dim) +
         2 * Carver::Floats<float>(kTile);
}

template <typename T>
void ForwardHead(const AttentionArgs<T>& args, int64_t sequence, int64_t head) {
  const AttentionShape& shape = args.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t first_row = sequence * shape.positions;
  const T* q = args.q + first_row * args.q_stride + head * head_dim;
  const T* k = args.k + first_row * args.k_stride + kv_head * head_dim;
  const T* v = args.v + first_row * args.v_stride + kv_head * head_dim;
  T* out = args.out + first_row * args.out_stride + head * head_dim;
  float* lse = args.lse + (sequence * shape.heads + head) * shape.positions;

  Carver carver(
      ThreadScratch(ScratchSlot::kAttention,
                    static_cast<size_t>(ForwardScratch<T>(head_dim))));
  float* scores = carver.Take<float>(kTile * kTile);
  T* probabilities = carver.Take<T>(kTile * kTile);
  const TileSums sums = {.max = carver.Take<float>(kTile),
                         .sum = carver.Take<float>(kTile),
                         .out = carver.Take<float>(kTile * head_dim)};

  for (int64_t q0 = 0; q0 < shape.positions; q0 += kTile) {
    const int64_t rows = std::min(kTile, shape.positions - q0);
    std::fill_n(sums.max, rows, -__builtin_inff());
    std::fill_n(sums.sum, rows, 0.0f);
    std::fill_n(sums.out, rows * head_dim, 0.0f);
    for (int64_t k0 = 0; k0 <= q0; k0 += kTile) {
      const int64_t columns = std::min(kTile, shape.positions - k0);
      TileProduct(MatmulArgs<T, float>{.a = q + q0 * args.q_stride,
                                       .lda = args.q_stride,
                                       .b = k + k0 * args.k_stride,
                                       .ldb = args.k_stride,
                                       .transpose_b = true,
                                       .c = scores,
                                       .ldc = kTile,
                                       .m = rows,
                                       .n = columns,
                                       .k = head_dim});
      ExponentiateTile(scores, rows, columns, k0 == q0, shape.scale, head_dim,
                       sums, probabilities);
      TileProduct(MatmulArgs<T, float>{.a = probabilities,
                                       .lda = kTile,
                                       .b = v + k0 * args.v_stride,
                                       .ldb = args.v_stride,
                                       .c = sums.out,
                                       .ldc = head_dim,
                                       .m = rows,
                                       .n = head_dim,
                                       .k = columns,
                                       .accumulate = true});
    }
    StoreDividedRows(sums.out, sums.sum, rows, head_dim,
                     out + q0 * args.out_stride, args.out_stride);
    for (int64_t r = 0; r < rows; ++r) {
      lse[q0 + r] = sums.max[r] + std::log(sums.sum[r]);
    }
  }
}

// From raw scores and d(probability), both [rows, columns] at kTile: the
// probabilities and the gradient of the scaled scores, rounded to T.
template <typename T>
HOLDFAST_VECTOR_CLONES void DifferentiateTile(
    float* scores, float* dprobabilities, int64_t rows, int64_t columns,
    bool diagonal, float scale, const float* lse, const float* delta,
    T* probabilities, T* dscores) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * kTile;
    float* dp = dprobabilities + r * kTile;
    T* p = probabilities + r * kTile;
    T* ds = dscores + r * kTile;
    const int64_t visible = VisibleColumns(diagonal, r, columns);
    const int64_t padded = PaddedColumns(visible);
    std::fill(row + visible, row + padded, -__builtin_inff());
    std::fill(dp + visible, dp + padded, 0.0f);
    const float row_lse = lse[r];
    const float row_delta = delta[r];
#pragma omp simd
    for (int64_t c = 0; c < padded; ++c) {
      const float probability = Exp(row[c] * scale - row_lse);
      p[c] = FromFloat<T>(probability);
      ds[c] = FromFloat<T>(probability * (dp[c] - row_delta) * scale);
    }
    std::fill(p + padded, p + std::max(padded, columns), T{});
    std::fill(ds + padded, ds + std::max(padded, columns), T{});
  }
}

// delta[r] = dout[r] . out[r], which is the sum over keys of p dp.
template <typename T>
HOLDFAST_VECTOR_CLONES void RowDots(const T* out, int64_t out_stride,
                                    const T* dout, int64_t dout_stride,
                                    int64_t rows, int64_t columns,
                                    float* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    delta[r] =
        DotInLanes(dout + r * dout_stride, out + r * out_stride, columns);
  }
}

template <typename T>
int64_t BackwardScratch(int64_t positions, int64_t head_dim) {
  return 2 * Carver::Floats<float>(kTile * kTile) +
         2 * Carver::Floats<T>(kTile * kTile) +
         3 * Carver::Floats<float>(positions * head_dim) +
         Carver::Floats<float>(positions);
}

template <typename T>
void BackwardKvHead(const AttentionBackwardArgs<T>& args, int64_t sequence,
                    int64_t kv_head) {
  const AttentionShape& shape = args.shape;
  const int64_t positions = shape.positions;
  const int64_t head_dim = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t first_row = sequence * positions;
  const T* k = args.k + first_row * args.k_stride + kv_head * head_dim;
  const T* v = args.v + first_row * args.v_stride + kv_head * head_dim;

  Carver carver(ThreadScratch(
      ScratchSlot::kAttention,
      static_cast<size_t>(BackwardScratch<T>(positions, head_dim))));
  float* scores = carver.Take<float>(kTile * kTile);
  float* dprobabilities = carver.Take<float>(kTile * kTile);
  T* probabilities = carver.Take<T>(kTile * kTile);
  T* dscores = carver.Take<T>(kTile * kTile);
  float* dq = carver.Take<float>(positions * head_dim);
  float* dk = carver.Take<float>(positions * head_dim);
  float* dv = carver.Take<float>(positions * head_dim);
  float* delta = carver.Take<float>(positions);

  std::fill_n(dk, positions * head_dim, 0.0f);
  std::fill_n(dv, positions * head_dim, 0.0f);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* q = args.q + first_row * args.q_stride + head * head_dim;
    const T* out = args.out + first_row * args.out_stride + head * head_dim;
    const T* dout = args.dout + first_row * args.dout_stride + head * head_dim;
    const float* lse = args.lse + (sequence * shape.heads + head) * positions;
    std::fill_n(dq, positions * head_dim, 0.0f);
    RowDots(out, args.out_stride, dout, args.dout_stride, positions, head_dim,
            delta);
    for (int64_t q0 = 0; q0 < positions; q0 += kTile) {
      const int64_t rows = std::min(kTile, positions - q0);
      const T* q_tile = q + q0 * args.q_stride;
      const T* dout_tile = dout + q0 * args.dout_stride;
      for (int64_t k0 = 0; k0 <= q0; k0 += kTile) {
        const int64_t columns = std::min(kTile, positions - k0);
        const T* k_tile = k + k0 * args.k_stride;
        MatmulArgs<T, float> scores_of = {.a = q_tile,
                                          .lda = args.q_stride,
                                          .b = k_tile,
                                          .ldb = args.k_stride,
                                          .transpose_b = true,
                                          .c = scores,
                                          .ldc = kTile,
                                          .m = rows,
                                          .n = columns,
                                          .k = head_dim};
        TileProduct(scores_of);
        scores_of.a = dout_tile;
        scores_of.lda = args.dout_stride;
        scores_of.b = v + k0 * args.v_stride;
        scores_of.ldb = args.v_stride;
        scores_of.c = dprobabilities;
        TileProduct(scores_of);
        DifferentiateTile(scores, dprobabilities, rows, columns, k0 == q0,
                          shape.scale, lse + q0, delta + q0, probabilities,
                          dscores);
        // Sums over queries: dv += p^T dout, dk += ds^T q.
        MatmulArgs<T, float> over_queries = {.a = probabilities,
                                             .lda = kTile,
                                             .transpose_a = true,
                                             .b = dout_tile,
                                             .ldb = args.dout_stride,
                                             .c = dv + k0 * head_dim,
                                             .ldc = head_dim,
                                             .m = columns,
                                             .n = head_dim,
                                             .k = rows,
                                             .accumulate = true};
        TileProduct(over_queries);
        over_queries.a = dscores;
        over_queries.b = q_tile;
        over_queries.ldb = args.q_stride;
        over_queries.c = dk + k0 * head_dim;
        TileProduct(over_queries);
        // The sum over keys: dq += ds k.
        TileProduct(MatmulArgs<T, float>{.a = dscores,
                                         .lda = kTile,
                                         .b = k_tile,
                                         .ldb = args.k_stride,
                                         .c = dq + q0 * head_dim,
                                         .ldc = head_dim,
                                         .m = rows,
                                         .n = head_dim,
                                         .k = columns,
                                         .accumulate = true});
      }
    }
    StoreRows(dq, positions, head_dim,
              args.dq + first_row * args.dq_stride + head * head_dim,
              args.dq_stride);
  }
  StoreRows(dk, positions, head_dim,
            args.dk + first_row * args.dk_stride + kv_head * head_dim,
            args.dk_stride);
  StoreRows(dv, positions, head_dim,
            args.dv + first_row * args.dv_stride + kv_head * head_dim,
            args.dv_stride);
}

void CheckShape(const AttentionShape& shape) {
  KERNEL_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
               "%d heads, %d key heads", shape.heads, shape.kv_heads);
  KERNEL_CHECK(shape.head_dim > 0 && shape.scale > 0.0f,
               "head_dim %d, scale %g", shape.head_dim, shape.scale);
}

}  // namespace

template <typename T>
void AttentionForward(Stream& stream, const AttentionArgs<T>& args) {
  CheckShape(args.shape);
  if (auto* set = KernelSetOf<T>(stream))
    return set->AttentionForward(stream, args);
  stream.Launch([args] {
    ParallelFor(args.shape.sequences * args.shape.heads, [&](int64_t i) {
      ForwardHead(args, i / args.shape.heads, i % args.shape.heads);
    });
  });
}

template <typename T>
void AttentionBackward(Stream& stream, const AttentionBackwardArgs<T>& args) {
  CheckShape(args.shape);
  if (auto* set = KernelSetOf<T>(stream))
    return set->AttentionBackward(stream, args);
  stream.Launch([args] {
    ParallelFor(args.shape.sequences * args.shape.kv_heads, [&](int64_t i) {
      BackwardKvHead(args, i / args.shape.kv_heads, i % args.shape.kv_heads);
    });
  });
}

template void AttentionForward(Stream&, const AttentionArgs<float>&);
template void AttentionForward(Stream&, const AttentionArgs<Bf16>&);
template void AttentionBackward(Stream&, const AttentionBackwardArgs<float>&);
template void AttentionBackward(Stream&, const AttentionBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
