// SwiGLU against the plain formula, finite differences, and its limits.

#include "kernels/swiglu.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class SwigluTest : public testing::Test {};
TYPED_TEST_SUITE(SwigluTest, ComputeTypes);

// gate and up are the halves of one matrix [rows, 2 * columns].
template <typename X>
std::vector<double> PlainSwiglu(const std::vector<X>& both, int64_t rows,
                                int64_t columns) {
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double g = ToFloat(both[r * 2 * columns + c]);
      const double u = ToFloat(both[r * 2 * columns + columns + c]);
      out.push_back(g / (1.0 + std::exp(-g)) * u);
    }
  }
  return out;
}

template <typename T>
std::vector<T> Forward(const std::vector<T>& both, int64_t rows,
                       int64_t columns) {
  std::vector<T> out(rows * columns);
  SwigluForward(CpuStream(), SwigluArgs<T>{.gate = both.data(),
                                           .up = both.data() + columns,
                                           .in_stride = 2 * columns,
                                           .out = out.data(),
                                           .rows = rows,
                                           .columns = columns});
  return out;
}

// Into `dboth`, which may be `both`.
template <typename T>
void Backward(const std::vector<T>& both, const std::vector<T>& dout,
              int64_t rows, int64_t columns, std::vector<T>* dboth) {
  SwigluBackward(CpuStream(),
                 SwigluBackwardArgs<T>{.gate = both.data(),
                                       .up = both.data() + columns,
                                       .in_stride = 2 * columns,
                                       .dout = dout.data(),
                                       .dgate = dboth->data(),
                                       .dup = dboth->data() + columns,
                                       .dstride = 2 * columns,
                                       .rows = rows,
                                       .columns = columns});
}

TYPED_TEST(SwigluTest, AgreesWithThePlainFormula) {
  const auto both = RandomValues<TypeParam>(13 * 2 * 37, 1, 8.0f);
  ExpectNear(Forward(both, 13, 37), PlainSwiglu(both, 13, 37),
             1.01 * kRounding<TypeParam> + 1e-6);
}

TEST(SwigluEdgeTest, LargeInputsGoToTheirLimits) {
  std::vector<float> both = {200.0f, -200.0f, 0.0f, 3.0f, 3.0f, 3.0f};
  const auto out = Forward(both, 1, 3);
  EXPECT_EQ(out[0], 600.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[2], 0.0f);
  std::vector<float> dboth(6);
  Backward(both, {1.0f, 1.0f, 1.0f}, 1, 3, &dboth);
  EXPECT_EQ(dboth[0], 3.0f);
  EXPECT_EQ(dboth[1], 0.0f);
  EXPECT_EQ(dboth[2], 1.5f);
}

TEST(SwigluGradientTest, AgreesWithFiniteDifferences) {
  const auto both = RandomValues<float>(3 * 2 * 19, 1, 3.0f);
  const auto dout = RandomValues<float>(3 * 19, 2);
  std::vector<float> dboth(both.size());
  Backward(both, dout, 3, 19, &dboth);
  ExpectGradient(
      both, dboth,
      [&](const std::vector<float>& moved) {
        const auto out = PlainSwiglu(moved, 3, 19);
        double sum = 0.0;
        for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
        return sum;
      },
      1e-3f, 1e-5);
}

TYPED_TEST(SwigluTest, GradientsMayOverwriteTheInputs) {
  auto both = RandomValues<TypeParam>(5 * 2 * 40, 1);
  const auto dout = RandomValues<TypeParam>(5 * 40, 2);
  std::vector<TypeParam> dboth(both.size());
  Backward(both, dout, 5, 40, &dboth);
  Backward(both, dout, 5, 40, &both);
  EXPECT_TRUE(SameBits(both, dboth));
}

TYPED_TEST(SwigluTest, ThreadCountNeverChangesABit) {
  const auto both = RandomValues<TypeParam>(100 * 2 * 67, 1);
  const auto dout = RandomValues<TypeParam>(100 * 67, 2);
  ExpectSameBitsOnAnyThreadCount([&] { return Forward(both, 100, 67); });
  ExpectSameBitsOnAnyThreadCount([&] {
    std::vector<TypeParam> dboth(both.size());
    Backward(both, dout, 100, 67, &dboth);
    return dboth;
  });
}

}  // namespace
}  // namespace holdfast::kernels
