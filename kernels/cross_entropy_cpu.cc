// kernels/cross_entropy_cpu.cc: cross entropy on the CPU: rows in parallel,
// each walked in blocks that stay in the first-level cache.

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cross_entropy.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kRowsPerItem = 4;
constexpr int64_t kColumnBlock = 2048;

template <typename T>
HOLDFAST_VECTOR_CLONES float RowMax(const T* row, int64_t count) {
  return MaxInLanes(row, count);
}

template <typename T>
HOLDFAST_VECTOR_CLONES double RowSumOfExp(const T* row, int64_t count,
                                          float max) {
  alignas(64) float exps[kColumnBlock];
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kColumnBlock) {
    const int64_t width = std::min(kColumnBlock, count - begin);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      exps[i] = Exp(ToFloat(row[begin + i]) - max);
    }
    sum += SumInLanes(exps, width);
  }
  return sum;
}

template <typename T>
HOLDFAST_VECTOR_CLONES void RowGradient(const T* row, int64_t count, float max,
                                        float factor, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    out[i] = FromFloat<T>(Exp(ToFloat(row[i]) - max) * factor);
  }
}

template <typename T>
void CheckLogits(const LogitsView<T>& logits) {
  KERNEL_CHECK(logits.valid_columns >= 0 &&
                   logits.valid_columns <= logits.columns &&
                   logits.columns <= logits.stride,
               "valid columns %d, columns %d, stride %d", logits.valid_columns,
               logits.columns, logits.stride);
}

// The target's column here, or -1.
template <typename T>
int64_t TargetColumn(const LogitsView<T>& logits, int32_t target) {
  const int64_t column = target - logits.column_begin;
  return column >= 0 && column < logits.valid_columns ? column : -1;
}

}  // namespace

template <typename T>
void CrossEntropyMax(Stream& stream, const LogitsView<T>& logits,
                     float* row_max) {
  CheckLogits(logits);
  if (auto* set = KernelSetOf<T>(stream))
    return set->CrossEntropyMax(stream, logits, row_max);
  stream.Launch([=] {
    ParallelRanges(logits.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        row_max[r] =
            RowMax(logits.data + r * logits.stride, logits.valid_columns);
      }
    });
  });
}

template <typename T>
void CrossEntropySum(Stream& stream, const LogitsView<T>& logits,
                     const float* row_max, const int32_t* targets,
                     float* sum_exp, float* target_logit) {
  CheckLogits(logits);
  if (auto* set = KernelSetOf<T>(stream))
    return set->CrossEntropySum(stream, logits, row_max, targets, sum_exp,
                                target_logit);
  stream.Launch([=] {
    ParallelRanges(logits.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits.data + r * logits.stride;
        sum_exp[r] = static_cast<float>(
            RowSumOfExp(row, logits.valid_columns, row_max[r]));
        const int64_t column = TargetColumn(logits, targets[r]);
        target_logit[r] = column < 0 ? 0.0f : ToFloat(row[column]) - row_max[r];
      }
    });
  });
}

void CrossEntropyLoss(Stream& stream, int64_t rows, const float* sum_exp,
                      const float* target_logit, const float* weights,
                      float* losses) {
  if (auto* set = stream.kernel_set())
    return set->CrossEntropyLoss(stream, rows, sum_exp, target_logit, weights,
                                 losses);
  stream.Launch([=] {
    for (int64_t r = 0; r < rows; ++r) {
      losses[r] =
          weights[r] == 0.0f
              ? 0.0f
              : static_cast<float>(std::log(static_cast<double>(sum_exp[r])) -
                                   static_cast<double>(target_logit[r]));
    }
  });
}

template <typename T>
void CrossEntropyBackward(Stream& stream, const LogitsView<T>& logits,
                          const float* row_max, const float* sum_exp,
                          const int32_t* targets, const float* weights,
                          T* dlogits, int64_t dlogits_stride) {
  CheckLogits(logits);
  if (auto* set = KernelSetOf<T>(stream))
    return set->CrossEntropyBackward(stream, logits, row_max, sum_exp, targets,
                                     weights, dlogits, dlogits_stride);
  stream.Launch([=] {
    ParallelRanges(logits.rows, kRowsPerItem, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits.data + r * logits.stride;
        T* out = dlogits + r * dlogits_stride;
        int64_t written = 0;
        if (weights[r] != 0.0f) {
          written = logits.valid_columns;
          const float factor = weights[r] / sum_exp[r];
          const int64_t column = TargetColumn(logits, targets[r]);
          // Before the row is overwritten; rounded once.
          float at_target = 0.0f;
          if (column >= 0) {
            at_target =
                Exp(ToFloat(row[column]) - row_max[r]) * factor - weights[r];
          }
          RowGradient(row, written, row_max[r], factor, out);
          if (column >= 0) out[column] = FromFloat<T>(at_target);
        }
        std::fill(out + written, out + logits.columns, T{});
      }
    });
  });
}

template void CrossEntropyMax(Stream&, const LogitsView<float>&, float*);
template void CrossEntropyMax(Stream&, const LogitsView<Bf16>&, float*);
template void CrossEntropySum(Stream&, const LogitsView<float>&, const float*,
                              const int32_t*, float*, float*);
template void CrossEntropySum(Stream&, const LogitsView<Bf16>&, const float*,
                              const int32_t*, float*, float*);
template void CrossEntropyBackward(Stream&, const LogitsView<float>&,
                                   const float*, const float*, const int32_t*,
                                   const float*, float*, int64_t);
template void CrossEntropyBackward(Stream&, const LogitsView<Bf16>&,
                                   const float*, const float*, const int32_t*,
                                   const float*, Bf16*, int64_t);

}  // namespace holdfast::kernels
