// kernels/rmsnorm_cpu.cc: RMSNorm on the CPU: rows in parallel, and columns in
// parallel for the weight's gradient, so that rows are added in order.

#include <cmath>

#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/rmsnorm.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kRowsPerItem = 16;
constexpr int64_t kColumnsPerItem = 128;

template <typename T>
HOLDFAST_VECTOR_CLONES void ForwardRows(const RmsNormArgs<T>& args,
                                        int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  const T* weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = args.x + row * hidden;
    T* y = args.y + row * hidden;
    const float mean = DotInLanes(x, x, hidden) / static_cast<float>(hidden);
    const float rstd = 1.0f / std::sqrt(mean + args.eps);
    args.rstd[row] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < hidden; ++i) {
      y[i] = FromFloat<T>(ToFloat(x[i]) * rstd * ToFloat(weight[i]));
    }
  }
}

// The sum of dy * weight * x over a row, in lanes.
template <typename T>
[[gnu::always_inline]] inline float RowProjection(const T* x, const T* weight,
                                                  const T* dy, int64_t hidden) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    sums += LoadLanes(dy + i) * LoadLanes(weight + i) * LoadLanes(x + i);
  }
  if (i < hidden) {
    const int64_t rest = hidden - i;
    sums += LoadSomeLanes(dy + i, rest, 0.0f) *
            LoadSomeLanes(weight + i, rest, 0.0f) *
            LoadSomeLanes(x + i, rest, 0.0f);
  }
  return SumOfLanes(sums);
}

// dx = rstd (weight dy - x rstd^2 mean(weight dy x)) (+ residual)
template <typename T>
HOLDFAST_VECTOR_CLONES void BackwardRows(const RmsNormBackwardArgs<T>& args,
                                         int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  const T* weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = args.x + row * hidden;
    const T* dy = args.dy + row * hidden;
    T* dx = args.dx + row * hidden;
    const float rstd = args.rstd[row];
    const float mean =
        RowProjection(x, weight, dy, hidden) / static_cast<float>(hidden);
    const float along_x = rstd * rstd * mean;
    if (args.residual == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < hidden; ++i) {
        dx[i] = FromFloat<T>(rstd * (ToFloat(weight[i]) * ToFloat(dy[i]) -
                                     ToFloat(x[i]) * along_x));
      }
    } else {
      const T* residual = args.residual + row * hidden;
#pragma omp simd
      for (int64_t i = 0; i < hidden; ++i) {
        dx[i] = FromFloat<T>(rstd * (ToFloat(weight[i]) * ToFloat(dy[i]) -
                                     ToFloat(x[i]) * along_x) +
                             ToFloat(residual[i]));
      }
    }
  }
}

template <typename T>
HOLDFAST_VECTOR_CLONES void BackwardColumns(const RmsNormBackwardArgs<T>& args,
                                            int64_t begin, int64_t end) {
  float sums[kColumnsPerItem] = {};
  const int64_t width = end - begin;
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = args.x + row * args.hidden + begin;
    const T* dy = args.dy + row * args.hidden + begin;
    const float rstd = args.rstd[row];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      sums[i] += ToFloat(dy[i]) * (ToFloat(x[i]) * rstd);
    }
  }
  for (int64_t i = 0; i < width; ++i) args.dweight[begin + i] += sums[i];
}

}  // namespace

template <typename T>
void RmsNormForward(Stream& stream, const RmsNormArgs<T>& args) {
  KERNEL_CHECK(args.hidden > 0, "hidden is %d", args.hidden);
  if (auto* set = KernelSetOf<T>(stream))
    return set->RmsNormForward(stream, args);
  stream.Launch([args] {
    ParallelRanges(args.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      ForwardRows(args, begin, end);
    });
  });
}

template <typename T>
void RmsNormBackward(Stream& stream, const RmsNormBackwardArgs<T>& args) {
  KERNEL_CHECK(args.hidden > 0, "hidden is %d", args.hidden);
  if (auto* set = KernelSetOf<T>(stream))
    return set->RmsNormBackward(stream, args);
  stream.Launch([args] {
    // The weight first: dx may overwrite dy.
    if (args.dweight != nullptr) {
      ParallelRanges(args.hidden, kColumnsPerItem,
                     [&](int64_t begin, int64_t end) {
                       BackwardColumns(args, begin, end);
                     });
    }
    ParallelRanges(args.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      BackwardRows(args, begin, end);
    });
  });
}

template void RmsNormForward(Stream&, const RmsNormArgs<float>&);
template void RmsNormForward(Stream&, const RmsNormArgs<Bf16>&);
template void RmsNormBackward(Stream&, const RmsNormBackwardArgs<float>&);
template void RmsNormBackward(Stream&, const RmsNormBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
