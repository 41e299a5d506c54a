// kernels/cross_entropy.h: softmax cross entropy over a divided vocabulary.
//
// Each rank of a tensor-parallel group holds some columns of the logits. Four
// kernels, and between them the caller joins one float per row over the group:
//
//   CrossEntropyMax       row_max       join by max
//   CrossEntropySum       sum_exp       join by sum
//                         target_logit  join by sum (zero on all ranks but one)
//   CrossEntropyLoss      losses        the same on every rank
//   CrossEntropyBackward  dlogits       local
//
// Undivided, nothing is joined and the answer is the ordinary one.
//
// Masking. Columns from valid_columns on are vocabulary padding: outside the
// max and the sum, and their gradient is zero. A row of weight zero has loss 0
// and gradient zero, whatever its logits and target, NaN included.
//
// Order. A row's sum adds 16 interleaved partial sums over each block of 2,048
// columns, joined pairwise in FP32, and adds the blocks in order in FP64. A row
// is one thread's work.

#ifndef HOLDFAST_KERNELS_CROSS_ENTROPY_H_
#define HOLDFAST_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

template <typename T>
struct LogitsView {
  const T* data = nullptr;  // [rows, columns] at stride
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;        // Of this rank, padding included.
  int64_t valid_columns = 0;  // Of this rank, 0 to columns.
  int64_t column_begin = 0;   // Vocabulary index of column 0.
};

// row_max [rows] = the largest valid logit, -infinity where there is none. A
// NaN gives a NaN.
template <typename T>
void CrossEntropyMax(Stream& stream, const LogitsView<T>& logits,
                     float* row_max);

// row_max [rows] is joined. sum_exp [rows] = the sum of exp(logit - row_max)
// over valid columns here; target_logit [rows] = the target's logit - row_max
// if its column is valid and here, else 0. targets [rows] are ids of the whole
// vocabulary.
template <typename T>
void CrossEntropySum(Stream& stream, const LogitsView<T>& logits,
                     const float* row_max, const int32_t* targets,
                     float* sum_exp, float* target_logit);

// losses [rows] = log(sum_exp) - target_logit where the weight is not zero: the
// loss of a token, not multiplied by its weight. Inputs are joined.
void CrossEntropyLoss(Stream& stream, int64_t rows, const float* sum_exp,
                      const float* target_logit, const float* weights,
                      float* losses);

// dlogits [rows, columns] at dlogits_stride = weights[row] * (probability - 1
// at the target), padding included (zero). May be the logits themselves.
template <typename T>
void CrossEntropyBackward(Stream& stream, const LogitsView<T>& logits,
                          const float* row_max, const float* sum_exp,
                          const int32_t* targets, const float* weights,
                          T* dlogits, int64_t dlogits_stride);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CROSS_ENTROPY_H_
