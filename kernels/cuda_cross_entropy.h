// kernels/cuda_cross_entropy.h: cross entropy over a divided vocabulary for a
// GPU.
//
// Against the CPU: row_max equal; target_logit and losses within 1 unit in the
// last place (of the larger logarithm for a loss); sum_exp within 2e-6
// relative; dlogits within 2e-6 times the row's weight and one rounding to T.
//
// Order. A thread of a row's 256 adds its packs in order, each pack of
// exponentials in FP32 and the packs in FP64; then the tree of
// kernels/cuda_block.h, in FP64.
//
// Bytes moved per logit: sizeof(T) in Max and in Sum, 2 sizeof(T) in Backward,
// which may write over the logits.

#ifndef HOLDFAST_KERNELS_CUDA_CROSS_ENTROPY_H_
#define HOLDFAST_KERNELS_CUDA_CROSS_ENTROPY_H_

#include <cmath>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_math.h"
#include "kernels/cuda_pack.h"

namespace holdfast::kernels {

// The target's column here, or -1.
template <typename T>
HF_HOST_DEVICE inline int64_t ColumnOfTarget(const LogitsView<T>& logits,
                                             int32_t target) {
  const int64_t column = target - logits.column_begin;
  return column >= 0 && column < logits.valid_columns ? column : -1;
}

// A row's valid columns for one thread of its block: body.Packs(pack) for each
// of its packs in increasing order, then as packs of one for what is left.
template <int kPack, int kThreads, typename T, typename Body>
HF_HOST_DEVICE inline void ForEachOfRow(const T* row, int64_t columns,
                                        int thread, const Body& body) {
  const int64_t packs = columns / kPack;
  int64_t p = thread;
  // Four loads on their way before the first is used.
  constexpr int kAhead = 4;
  for (; p + (kAhead - 1) * kThreads < packs; p += kAhead * kThreads) {
    Pack<T, kPack> pack[kAhead];
    HF_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      pack[i] = LoadPack<kPack>(row + (p + i * kThreads) * kPack);
    }
    HF_UNROLL
    for (int i = 0; i < kAhead; ++i) body(pack[i]);
  }
  for (; p < packs; p += kThreads) body(LoadPack<kPack>(row + p * kPack));
  for (int64_t c = packs * kPack + thread; c < columns; c += kThreads) {
    body(LoadPack<1>(row + c));
  }
}

template <typename T, int kPack>
struct CrossEntropyMaxKernel {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  LogitsView<T> logits;
  float* row_max;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    for (int64_t row = block.index(); row < logits.rows; row += block.count()) {
      auto largest = block.template PerThread<float>();
      block.ForEachOnly([&](int thread) {
        float max = -__builtin_inff();
        ForEachOfRow<kPack, kThreads>(logits.data + row * logits.stride,
                                      logits.valid_columns, thread,
                                      [&](const auto& pack) {
                                        for (const T value : pack.at) {
                                          max = Maximum{}(ToFloat(value), max);
                                        }
                                      });
        largest[thread] = max;
      });
      block.template Reduce<kThreads>(largest, Maximum{});
      block.ForEachOnly([&](int thread) {
        if (thread == 0) row_max[row] = largest[thread];
      });
    }
  }
};

template <typename T, int kPack>
struct CrossEntropySumKernel {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  LogitsView<T> logits;
  const float* row_max;
  const int32_t* targets;
  float* sum_exp;
  float* target_logit;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    for (int64_t row = block.index(); row < logits.rows; row += block.count()) {
      auto sums = block.template PerThread<double>();
      const T* values = logits.data + row * logits.stride;
      block.ForEachOnly([&](int thread) {
        const float max = row_max[row];
        double sum = 0.0;
        ForEachOfRow<kPack, kThreads>(values, logits.valid_columns, thread,
                                      [&](const auto& pack) {
                                        float exps = 0.0f;
                                        for (const T value : pack.at)
                                          exps += ExpOf(ToFloat(value) - max);
                                        sum += exps;
                                      });
        sums[thread] = sum;
      });
      block.template Reduce<kThreads>(sums, Plus{});
      block.ForEachOnly([&](int thread) {
        if (thread != 0) return;
        sum_exp[row] = static_cast<float>(sums[thread]);
        const int64_t column = ColumnOfTarget(logits, targets[row]);
        target_logit[row] =
            column < 0 ? 0.0f : ToFloat(values[column]) - row_max[row];
      });
    }
  }
};

struct CrossEntropyLossOp {
  const float* sum_exp;
  const float* target_logit;
  const float* weights;
  float* losses;

  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t row) const {
    static_assert(kCount == 1);
    losses[row] =
        weights[row] == 0.0f
            ? 0.0f
            : static_cast<float>(std::log(static_cast<double>(sum_exp[row])) -
                                 static_cast<double>(target_logit[row]));
  }
};

template <typename T, int kPack>
struct CrossEntropyBackwardOp {
  LogitsView<T> logits;
  const float* row_max;
  const float* sum_exp;
  const int32_t* targets;
  const float* weights;
  T* dlogits;
  int64_t dlogits_stride;

  // A thread reads the logits that it writes over, before; the last pack of a
  // row may be short.
  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    const int64_t begin = pack * kPack;
    const T* from = logits.data + row * logits.stride + begin;
    T* to = dlogits + row * dlogits_stride + begin;
    const float weight = weights[row];
    const int64_t valid = weight != 0.0f ? logits.valid_columns : 0;
    const float factor = weight != 0.0f ? weight / sum_exp[row] : 0.0f;
    const float max = row_max[row];
    const int64_t target = ColumnOfTarget(logits, targets[row]);
    if (begin + kPack <= logits.columns) {
      Pack<T, kPack> values = {};
      if (begin < valid) values = LoadPack<kPack>(from);
      HF_UNROLL
      for (int i = 0; i < kPack; ++i) {
        values.at[i] = Gradient(values.at[i], begin + i, valid, target, max,
                                factor, weight);
      }
      StorePack(values, to);
    } else {
      for (int64_t c = begin; c < logits.columns; ++c) {
        to[c - begin] =
            Gradient(from[c - begin], c, valid, target, max, factor, weight);
      }
    }
  }

 private:
  HF_HOST_DEVICE static T Gradient(T logit, int64_t column, int64_t valid,
                                   int64_t target, float max, float factor,
                                   float weight) {
    if (column >= valid) return T{};
    const float share = ExpOf(ToFloat(logit) - max) * factor;
    return FromFloat<T>(column == target ? share - weight : share);
  }
};

template <typename T>
bool LogitsAligned(const LogitsView<T>& logits) {
  constexpr int kPack = 16 / sizeof(T);
  return logits.stride % kPack == 0 && PackAligned<kPack>(logits.data);
}

template <typename T, typename Runner>
void RunCrossEntropyMax(const LogitsView<T>& logits, float* row_max,
                        const Runner& run) {
  if (LogitsAligned(logits)) {
    run(CrossEntropyMaxKernel<T, 16 / sizeof(T)>{logits, row_max}, logits.rows);
  } else {
    run(CrossEntropyMaxKernel<T, 1>{logits, row_max}, logits.rows);
  }
}

template <typename T, typename Runner>
void RunCrossEntropySum(const LogitsView<T>& logits, const float* row_max,
                        const int32_t* targets, float* sum_exp,
                        float* target_logit, const Runner& run) {
  if (LogitsAligned(logits)) {
    run(CrossEntropySumKernel<T, 16 / sizeof(T)>{logits, row_max, targets,
                                                 sum_exp, target_logit},
        logits.rows);
  } else {
    run(CrossEntropySumKernel<T, 1>{logits, row_max, targets, sum_exp,
                                    target_logit},
        logits.rows);
  }
}

template <typename Runner>
void RunCrossEntropyLoss(int64_t rows, const float* sum_exp,
                         const float* target_logit, const float* weights,
                         float* losses, const Runner& run) {
  RunFlat<1>(CrossEntropyLossOp{sum_exp, target_logit, weights, losses}, rows,
             /*aligned=*/true, run);
}

template <typename T, typename Runner>
void RunCrossEntropyBackward(const LogitsView<T>& logits, const float* row_max,
                             const float* sum_exp, const int32_t* targets,
                             const float* weights, T* dlogits,
                             int64_t dlogits_stride, const Runner& run) {
  constexpr int kPack = 16 / sizeof(T);
  if (LogitsAligned(logits) && dlogits_stride % kPack == 0 &&
      PackAligned<kPack>(dlogits)) {
    RunRows(CrossEntropyBackwardOp<T, kPack>{logits, row_max, sum_exp, targets,
                                             weights, dlogits, dlogits_stride},
            logits.rows, CeilDivide(logits.columns, kPack), run);
  } else {
    RunRows(CrossEntropyBackwardOp<T, 1>{logits, row_max, sum_exp, targets,
                                         weights, dlogits, dlogits_stride},
            logits.rows, logits.columns, run);
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_CROSS_ENTROPY_H_
