// Attention against the plain formula in double, its gradients against finite
// differences, and masks.

#include "kernels/attention.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/attention_problem.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class AttentionTest : public testing::Test {};
TYPED_TEST_SUITE(AttentionTest, ComputeTypes);

// q, k and v as columns of one matrix, as the model keeps them.
template <typename T>
struct Problem {
  AttentionShape shape;
  int64_t stride = 0;
  std::vector<T> qkv;
  std::vector<T> out;
  std::vector<float> lse;

  explicit Problem(const AttentionShape& s, uint64_t seed = 1) : shape(s) {
    shape.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
    qkv = RandomValues<T>(rows() * stride, seed, 2.0f);
    out.resize(static_cast<size_t>(rows() * width()));
    lse.resize(static_cast<size_t>(rows() * s.heads));
  }
  int64_t rows() const { return shape.sequences * shape.positions; }
  int64_t width() const { return shape.heads * shape.head_dim; }
  int64_t k_at() const { return width(); }
  int64_t v_at() const { return width() + shape.kv_heads * shape.head_dim; }

  AttentionMatrices<T> Matrices(const T* dout, T* dqkv) {
    return {.shape = shape,
            .qkv = qkv.data(),
            .stride = stride,
            .out = out.data(),
            .dout = dout,
            .out_stride = width(),
            .lse = lse.data(),
            .dqkv = dqkv};
  }
  void Forward() {
    AttentionForward(CpuStream(), Matrices(nullptr, nullptr).Forward());
  }

  // d(qkv), laid out as qkv is.
  std::vector<T> Backward(const std::vector<T>& dout) {
    std::vector<T> d(qkv.size());
    AttentionBackward(CpuStream(), Matrices(dout.data(), d.data()).Backward());
    return d;
  }
};

// The formula of the header, and the log of each row's sum of exponentials.
template <typename T>
std::vector<double> PlainAttention(const Problem<T>& p,
                                   std::vector<double>* lse) {
  const AttentionShape& s = p.shape;
  std::vector<double> out(p.out.size(), 0.0);
  lse->assign(p.lse.size(), 0.0);
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h / (s.heads / s.kv_heads) * s.head_dim;
      for (int64_t i = 0; i < s.positions; ++i) {
        const T* q = &p.qkv[(b * s.positions + i) * p.stride + h * s.head_dim];
        std::vector<double> weights;
        double sum = 0.0;
        for (int64_t j = 0; j <= i; ++j) {
          const T* k = &p.qkv[(b * s.positions + j) * p.stride + p.k_at() + kv];
          double score = 0.0;
          for (int64_t c = 0; c < s.head_dim; ++c) {
            score += double{ToFloat(q[c])} * ToFloat(k[c]);
          }
          weights.push_back(std::exp(score * s.scale));
          sum += weights.back();
        }
        (*lse)[(b * s.heads + h) * s.positions + i] = std::log(sum);
        for (int64_t j = 0; j <= i; ++j) {
          const T* v = &p.qkv[(b * s.positions + j) * p.stride + p.v_at() + kv];
          for (int64_t c = 0; c < s.head_dim; ++c) {
            out[(b * s.positions + i) * p.width() + h * s.head_dim + c] +=
                weights[j] / sum * ToFloat(v[c]);
          }
        }
      }
    }
  }
  return out;
}

TYPED_TEST(AttentionTest, AgreesWithThePlainFormula) {
  const AttentionShape shapes[] = {
      {.sequences = 2,
       .positions = 1,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 8},
      {.sequences = 2,
       .positions = 37,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 16},
      {.sequences = 1,
       .positions = kAttentionTile,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 64},
      {.sequences = 1,
       .positions = 2 * kAttentionTile + 5,
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 24},
  };
  for (const AttentionShape& shape : shapes) {
    Problem<TypeParam> p(shape);
    p.Forward();
    std::vector<double> lse;
    const std::vector<double> expected = PlainAttention(p, &lse);
    const double relative = std::is_same_v<TypeParam, Bf16> ? 0.01 : 2e-6;
    ExpectNear(p.out, expected, relative);
    ExpectNear(p.lse, lse, 2e-6);
  }
}

TYPED_TEST(AttentionTest, ThreadCountNeverChangesABit) {
  Problem<TypeParam> p({.sequences = 3,
                        .positions = 150,
                        .heads = 6,
                        .kv_heads = 2,
                        .head_dim = 32});
  const auto dout = RandomValues<TypeParam>(p.rows() * p.width(), 8);
  ExpectSameBitsOnAnyThreadCount([&] {
    p.Forward();
    return p.out;
  });
  ExpectSameBitsOnAnyThreadCount([&] { return p.Backward(dout); });
}

TEST(AttentionGradientTest, AgreesWithFiniteDifferences) {
  // Two tiles of positions would be slow here: the tile edge is covered by the
  // comparison across tile sizes below.
  Problem<float> p({.sequences = 2,
                    .positions = 5,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 6});
  const auto dout = RandomValues<float>(p.rows() * p.width(), 8);
  p.Forward();
  const std::vector<float> gradient = p.Backward(dout);
  const auto loss = [&](const std::vector<float>& qkv) {
    Problem<float> moved = p;
    moved.qkv = qkv;
    std::vector<double> lse;
    const std::vector<double> out = PlainAttention(moved, &lse);
    double sum = 0.0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  ExpectGradient(p.qkv, gradient, loss, 1e-3f, 1e-5);
}

// The gradient by the textbook formula in double, for lengths beyond a tile.
template <typename T>
std::vector<double> PlainGradient(const Problem<T>& p,
                                  const std::vector<T>& dout) {
  const AttentionShape& s = p.shape;
  std::vector<double> lse;
  const std::vector<double> out = PlainAttention(p, &lse);
  std::vector<double> d(p.qkv.size(), 0.0);
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h / (s.heads / s.kv_heads) * s.head_dim;
      for (int64_t i = 0; i < s.positions; ++i) {
        const int64_t q = (b * s.positions + i) * p.stride + h * s.head_dim;
        const int64_t o = (b * s.positions + i) * p.width() + h * s.head_dim;
        double delta = 0.0;
        for (int64_t c = 0; c < s.head_dim; ++c) {
          delta += out[o + c] * ToFloat(dout[o + c]);
        }
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t row = (b * s.positions + j) * p.stride;
          const int64_t k = row + p.k_at() + kv;
          const int64_t v = row + p.v_at() + kv;
          double score = 0.0;
          double dp = 0.0;
          for (int64_t c = 0; c < s.head_dim; ++c) {
            score += double{ToFloat(p.qkv[q + c])} * ToFloat(p.qkv[k + c]);
            dp += double{ToFloat(dout[o + c])} * ToFloat(p.qkv[v + c]);
          }
          const double weight = std::exp(
              score * s.scale - lse[(b * s.heads + h) * s.positions + i]);
          const double ds = weight * (dp - delta) * s.scale;
          for (int64_t c = 0; c < s.head_dim; ++c) {
            d[q + c] += ds * ToFloat(p.qkv[k + c]);
            d[k + c] += ds * ToFloat(p.qkv[q + c]);
            d[v + c] += weight * ToFloat(dout[o + c]);
          }
        }
      }
    }
  }
  return d;
}

TYPED_TEST(AttentionTest, GradientsAgreeWithThePlainFormulaAcrossTiles) {
  Problem<TypeParam> p({.sequences = 1,
                        .positions = kAttentionTile + 40,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 16});
  const auto dout = RandomValues<TypeParam>(p.rows() * p.width(), 8);
  p.Forward();
  const auto gradient = p.Backward(dout);
  const double relative = std::is_same_v<TypeParam, Bf16> ? 0.03 : 1e-5;
  ExpectNear(gradient, PlainGradient(p, dout), relative);
}

TEST(AttentionMaskTest, TheFutureAndOtherSequencesAreNotSeen) {
  Problem<float> p({.sequences = 2,
                    .positions = kAttentionTile + 9,
                    .heads = 2,
                    .kv_heads = 1,
                    .head_dim = 8});
  p.Forward();
  const std::vector<float> before = p.out;
  // Change one row in the middle of the second sequence.
  const int64_t changed = p.shape.positions + 130;
  for (int64_t c = 0; c < p.stride; ++c) p.qkv[changed * p.stride + c] += 1.0f;
  p.Forward();
  for (int64_t row = 0; row < p.rows(); ++row) {
    const bool same =
        std::memcmp(&before[row * p.width()], &p.out[row * p.width()],
                    p.width() * sizeof(float)) == 0;
    EXPECT_EQ(same, row < changed) << "row " << row;
  }
}

TEST(AttentionMaskTest, LargeScoresDoNotOverflow) {
  Problem<float> p({.sequences = 1,
                    .positions = 20,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_dim = 4});
  for (float& value : p.qkv) value *= 100.0f;
  p.Forward();
  for (float value : p.out) EXPECT_TRUE(std::isfinite(value));
  const auto gradient = p.Backward(RandomValues<float>(p.rows() * 4, 3));
  for (float value : gradient) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace holdfast::kernels
