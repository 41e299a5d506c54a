// RMSNorm against the plain formula, finite differences and its order of sums.

#include "kernels/rmsnorm.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class RmsNormTest : public testing::Test {};
TYPED_TEST_SUITE(RmsNormTest, ComputeTypes);

constexpr float kEps = 1e-5f;

template <typename X>
std::vector<double> PlainNorm(const std::vector<X>& x, const std::vector<X>& w,
                              int64_t rows, int64_t hidden) {
  std::vector<double> y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0.0;
    for (int64_t i = 0; i < hidden; ++i) {
      mean += std::pow(ToFloat(x[r * hidden + i]), 2.0) / hidden;
    }
    for (int64_t i = 0; i < hidden; ++i) {
      y[r * hidden + i] =
          ToFloat(x[r * hidden + i]) / std::sqrt(mean + kEps) * ToFloat(w[i]);
    }
  }
  return y;
}

template <typename T>
struct Problem {
  int64_t rows, hidden;
  std::vector<T> x, weight, y, dy, residual, dx;
  std::vector<float> rstd, dweight;

  Problem(int64_t r, int64_t h)
      : rows(r),
        hidden(h),
        x(RandomValues<T>(r * h, 1, 3.0f)),
        weight(RandomValues<T>(h, 2)),
        y(x.size()),
        dy(RandomValues<T>(r * h, 3)),
        residual(RandomValues<T>(r * h, 4)),
        dx(x.size()),
        rstd(r),
        dweight(h) {}

  void Forward() {
    RmsNormForward(CpuStream(), RmsNormArgs<T>{.x = x.data(),
                                               .weight = weight.data(),
                                               .y = y.data(),
                                               .rstd = rstd.data(),
                                               .rows = rows,
                                               .hidden = hidden,
                                               .eps = kEps});
  }
  RmsNormBackwardArgs<T> BackwardArgs() {
    return {.x = x.data(),
            .weight = weight.data(),
            .rstd = rstd.data(),
            .dy = dy.data(),
            .dx = dx.data(),
            .dweight = dweight.data(),
            .rows = rows,
            .hidden = hidden};
  }
};

TYPED_TEST(RmsNormTest, AgreesWithThePlainFormula) {
  for (int64_t hidden : {1, 5, 16, 100, 768}) {
    Problem<TypeParam> p(19, hidden);
    p.Forward();
    ExpectNear(p.y, PlainNorm(p.x, p.weight, p.rows, hidden),
               1.01 * kRounding<TypeParam> + 1e-6);
  }
}

TYPED_TEST(RmsNormTest, MayWriteOverItsInput) {
  Problem<TypeParam> p(19, 33);
  p.Forward();
  const auto y = p.y;
  RmsNormForward(CpuStream(), RmsNormArgs<TypeParam>{.x = p.x.data(),
                                                     .weight = p.weight.data(),
                                                     .y = p.x.data(),
                                                     .rstd = p.rstd.data(),
                                                     .rows = p.rows,
                                                     .hidden = p.hidden,
                                                     .eps = kEps});
  EXPECT_TRUE(SameBits(p.x, y));
}

TEST(RmsNormGradientTest, AgreesWithFiniteDifferences) {
  Problem<float> p(3, 21);
  p.Forward();
  RmsNormBackward(CpuStream(), p.BackwardArgs());
  const auto dot = [&](const std::vector<double>& y) {
    double sum = 0.0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * p.dy[i];
    return sum;
  };
  ExpectGradient(
      p.x, p.dx,
      [&](const std::vector<float>& x) {
        return dot(PlainNorm(x, p.weight, p.rows, p.hidden));
      },
      1e-3f, 1e-5);
  ExpectGradient(
      p.weight, p.dweight,
      [&](const std::vector<float>& w) {
        return dot(PlainNorm(p.x, w, p.rows, p.hidden));
      },
      1e-3f, 1e-5);
}

TYPED_TEST(RmsNormTest, BackwardAddsTheResidualBeforeItsOneRounding) {
  Problem<float> exact(9, 40);
  Problem<TypeParam> p(9, 40);
  for (size_t i = 0; i < p.x.size(); ++i) {
    exact.x[i] = ToFloat(p.x[i]);
    exact.dy[i] = ToFloat(p.dy[i]);
  }
  for (size_t i = 0; i < p.weight.size(); ++i) {
    exact.weight[i] = ToFloat(p.weight[i]);
  }
  exact.Forward();
  p.Forward();
  RmsNormBackward(CpuStream(), exact.BackwardArgs());
  auto args = p.BackwardArgs();
  args.residual = p.residual.data();
  RmsNormBackward(CpuStream(), args);
  for (size_t i = 0; i < p.dx.size(); ++i) {
    ASSERT_EQ(p.dx[i],
              FromFloat<TypeParam>(exact.dx[i] + ToFloat(p.residual[i])));
  }
  // In place: the residual's array may take the result.
  args.dweight = nullptr;
  args.dx = p.residual.data();
  RmsNormBackward(CpuStream(), args);
  EXPECT_TRUE(SameBits(p.dx, p.residual));
}

TYPED_TEST(RmsNormTest, WeightGradientAccumulatesRowsInOrder) {
  Problem<TypeParam> p(50, 300);
  p.Forward();
  p.dweight.assign(300, 2.0f);
  RmsNormBackward(CpuStream(), p.BackwardArgs());
  for (int64_t i = 0; i < p.hidden; ++i) {
    float sum = 0.0f;
    for (int64_t r = 0; r < p.rows; ++r) {
      const int64_t at = r * p.hidden + i;
      sum += ToFloat(p.dy[at]) * (ToFloat(p.x[at]) * p.rstd[r]);
    }
    ASSERT_EQ(p.dweight[i], 2.0f + sum);
  }
}

TYPED_TEST(RmsNormTest, ThreadCountNeverChangesABit) {
  Problem<TypeParam> p(70, 515);
  ExpectSameBitsOnAnyThreadCount([&] {
    p.Forward();
    return p.y;
  });
  ExpectSameBitsOnAnyThreadCount([&] {
    p.dweight.assign(p.hidden, 0.0f);
    RmsNormBackward(CpuStream(), p.BackwardArgs());
    std::vector<float> all = p.dweight;
    for (TypeParam v : p.dx) all.push_back(ToFloat(v));
    return all;
  });
}

TEST(RmsNormEdgeTest, AZeroRowGivesZerosAndAFiniteGradient) {
  Problem<float> p(2, 8);
  std::fill_n(p.x.begin(), 8, 0.0f);
  p.Forward();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(p.y[i], 0.0f);
  RmsNormBackward(CpuStream(), p.BackwardArgs());
  for (float d : p.dx) EXPECT_TRUE(std::isfinite(d));
}

}  // namespace
}  // namespace holdfast::kernels
