// tests/unit/kernels/attention_problem.h: attention on random values, forward
// and backward, by the processor's version or by another one.

#ifndef HOLDFAST_TESTS_UNIT_KERNELS_ATTENTION_PROBLEM_H_
#define HOLDFAST_TESTS_UNIT_KERNELS_ATTENTION_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/stream.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {

// Where the matrices of a call lie, on the host or elsewhere: q, k and v are
// columns of one matrix of rows of `stride`, as are their gradients.
template <typename T>
struct AttentionMatrices {
  AttentionShape shape;
  const T* qkv;
  int64_t stride;
  T* out;
  const T* dout;
  int64_t out_stride;
  float* lse;
  T* dqkv;

  int64_t k_at() const { return shape.heads * shape.head_dim; }
  int64_t v_at() const { return k_at() + shape.kv_heads * shape.head_dim; }

  AttentionArgs<T> Forward() const {
    return {.shape = shape,
            .q = qkv,
            .q_stride = stride,
            .k = qkv + k_at(),
            .k_stride = stride,
            .v = qkv + v_at(),
            .v_stride = stride,
            .out = out,
            .out_stride = out_stride,
            .lse = lse};
  }
  AttentionBackwardArgs<T> Backward() const {
    return {.shape = shape,
            .q = qkv,
            .q_stride = stride,
            .k = qkv + k_at(),
            .k_stride = stride,
            .v = qkv + v_at(),
            .v_stride = stride,
            .out = out,
            .out_stride = out_stride,
            .lse = lse,
            .dout = dout,
            .dout_stride = out_stride,
            .dq = dqkv,
            .dq_stride = stride,
            .dk = dqkv + k_at(),
            .dk_stride = stride,
            .dv = dqkv + v_at(),
            .dv_stride = stride};
  }
};

// Everything starts on 16 bytes, as the heap does: q, k and v are columns of
// one matrix whose rows are `padding` elements longer than they need; so are
// out and dout.
template <typename T>
struct AttentionProblem {
  AttentionShape shape;
  int64_t padding = 8;
  std::vector<T> qkv;
  std::vector<T> dout;

  AttentionProblem(const AttentionShape& of, uint64_t seed,
                   int64_t row_padding = 8)
      : shape(of), padding(row_padding) {
    if (shape.scale == 0.0f) {
      shape.scale = 1.0f / std::sqrt(static_cast<float>(of.head_dim));
    }
    qkv = RandomValues<T>(rows() * stride(), seed, 2.0f);
    dout = RandomValues<T>(rows() * out_stride(), seed + 1);
  }

  int64_t rows() const { return shape.sequences * shape.positions; }
  int64_t stride() const {
    return (shape.heads + 2 * shape.kv_heads) * shape.head_dim + padding;
  }
  int64_t out_stride() const { return shape.heads * shape.head_dim + padding; }
  int64_t k_at() const { return shape.heads * shape.head_dim; }
  int64_t v_at() const { return k_at() + shape.kv_heads * shape.head_dim; }

  // What one implementation makes of it. Starts as values that no result has,
  // and stays so between the rows' ends and strides.
  struct Results {
    std::vector<T> out;
    std::vector<float> lse;
    std::vector<T> dqkv;
  };
  static T Untouched() { return FromFloat<T>(-1234.5f); }
  Results NoResults() const {
    return {.out = std::vector<T>(rows() * out_stride(), Untouched()),
            .lse = std::vector<float>(rows() * shape.heads, -1234.5f),
            .dqkv = std::vector<T>(rows() * stride(), Untouched())};
  }

  AttentionMatrices<T> On(Results& results) const {
    return {.shape = shape,
            .qkv = qkv.data(),
            .stride = stride(),
            .out = results.out.data(),
            .dout = dout.data(),
            .out_stride = out_stride(),
            .lse = results.lse.data(),
            .dqkv = results.dqkv.data()};
  }
  AttentionArgs<T> Forward(Results& results) const {
    return On(results).Forward();
  }
  AttentionBackwardArgs<T> Backward(Results& results) const {
    return On(results).Backward();
  }

  // The processor's results.
  Results Expected() const {
    Results results = NoResults();
    AttentionForward(CpuStream(), Forward(results));
    AttentionBackward(CpuStream(), Backward(results));
    return results;
  }

  // Columns [first, first + count) of a matrix.
  static std::vector<double> Columns(const std::vector<T>& matrix,
                                     int64_t stride, int64_t first,
                                     int64_t count) {
    std::vector<double> columns;
    for (size_t row = 0; row < matrix.size(); row += stride) {
      for (int64_t c = first; c < first + count; ++c) {
        columns.push_back(ToFloat(matrix[row + c]));
      }
    }
    return columns;
  }
};

// Largest difference, in units of `unit`; infinite where only one is NaN.
template <typename A, typename B>
double LargestDifference(const std::vector<A>& a, const std::vector<B>& b,
                         double unit) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i];
    const double y = b[i];
    if (std::isnan(x) && std::isnan(y)) continue;
    const double difference = std::abs(x - y) / unit;
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(largest)) return std::numeric_limits<double>::infinity();
  }
  return largest;
}

inline double Largest(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) {
    if (std::abs(value) > largest) largest = std::abs(value);
  }
  return largest;
}

// Within what kernels/cuda_attention.h promises of Bf16, and of FP32
// kernels/cuda_attention_plain.h. Nothing is written beside the results.
template <typename T>
void ExpectForwardNear(const AttentionProblem<T>& p,
                       const typename AttentionProblem<T>::Results& actual,
                       const typename AttentionProblem<T>::Results& expected) {
  using Problem = AttentionProblem<T>;
  constexpr bool kExact = std::is_same_v<T, float>;
  constexpr double kUnit = kExact ? 1e-5 : 1.0 / 256;
  const int64_t width = p.shape.heads * p.shape.head_dim;
  const auto v = Problem::Columns(p.qkv, p.stride(), p.v_at(),
                                  p.shape.kv_heads * p.shape.head_dim);
  EXPECT_LE(LargestDifference(
                Problem::Columns(actual.out, p.out_stride(), 0, width),
                Problem::Columns(expected.out, p.out_stride(), 0, width),
                Largest(v) * kUnit),
            2.0);
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isnan(expected.lse[i]) && std::isnan(actual.lse[i])) continue;
    ASSERT_NEAR(
        actual.lse[i], expected.lse[i],
        (kExact ? 1e-5 : 3e-5) * std::max(1.0f, std::abs(expected.lse[i])))
        << "at " << i;
  }
  for (int64_t row = 0; row < p.rows(); ++row) {
    for (int64_t c = width; c < p.out_stride(); ++c) {
      ASSERT_EQ(ToFloat(actual.out[row * p.out_stride() + c]),
                ToFloat(Problem::Untouched()));
    }
  }
}

template <typename T>
void ExpectBackwardNear(const AttentionProblem<T>& p,
                        const typename AttentionProblem<T>::Results& actual,
                        const typename AttentionProblem<T>::Results& expected) {
  using Problem = AttentionProblem<T>;
  constexpr double kUnit = std::is_same_v<T, float> ? 1e-5 : 1.0 / 256;
  const int64_t kv_width = p.shape.kv_heads * p.shape.head_dim;
  const struct {
    const char* name;
    int64_t at;
    int64_t width;
  } gradients[] = {{"dq", 0, p.k_at()},
                   {"dk", p.k_at(), kv_width},
                   {"dv", p.v_at(), kv_width}};
  const auto columns = [&](const typename Problem::Results& results,
                           const auto& of) {
    return Problem::Columns(results.dqkv, p.stride(), of.at, of.width);
  };
  double largest = 0.0;  // Of all three: one key alone has no dq and dk.
  for (const auto& gradient : gradients) {
    largest = std::max(largest, Largest(columns(expected, gradient)));
  }
  for (const auto& gradient : gradients) {
    const auto want = columns(expected, gradient);
    EXPECT_LE(LargestDifference(columns(actual, gradient), want,
                                std::max(Largest(want), largest / 16) * kUnit),
              3.0)
        << gradient.name;
  }
  for (int64_t row = 1; row <= p.rows(); ++row) {
    for (int64_t c = p.padding; c > 0; --c) {
      ASSERT_EQ(ToFloat(actual.dqkv[row * p.stride() - c]),
                ToFloat(Problem::Untouched()));
    }
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_UNIT_KERNELS_ATTENTION_PROBLEM_H_
