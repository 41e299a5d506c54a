// The exponential and the sums in lanes that the kernels share.

#include "kernels/vector.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ExpTest, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0.0;
  for (float x = -87.3f; x < 88.7f; x += 0.0037f) {
    const double exact = std::exp(double{x});
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(double{Exp(x)} - exact) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(Exp(0.0f), 1.0f);
}

TEST(ExpTest, HandlesTheEnds) {
  EXPECT_EQ(Exp(-kInf), 0.0f);
  EXPECT_EQ(Exp(-88.0f), 0.0f);
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_EQ(Exp(89.0f), kInf);
  EXPECT_TRUE(std::isfinite(Exp(88.7f)));
  EXPECT_TRUE(std::isnan(Exp(std::nanf(""))));
}

TEST(LanesTest, SumsAndDotsAgreeWithDoubleAtEveryLength) {
  const auto x = RandomValues<float>(100, 1);
  const auto y = RandomValues<Bf16>(100, 2);
  for (int64_t count = 0; count <= 100; ++count) {
    double sum = 0.0;
    double dot = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      sum += x[i];
      dot += double{x[i]} * ToFloat(y[i]);
    }
    ASSERT_NEAR(SumInLanes(x.data(), count), sum, 1e-5);
    ASSERT_NEAR(DotInLanes(x.data(), y.data(), count), dot, 1e-5);
  }
}

TEST(LanesTest, SumHasTheStatedOrder) {
  const auto x = RandomValues<float>(70, 3);
  float lanes[16] = {};
  for (int i = 0; i < 70; ++i) lanes[i % 16] += x[i];
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  EXPECT_EQ(SumInLanes(x.data(), 70), lanes[0]);
}

TEST(LanesTest, MaxFindsEveryPositionAndKeepsNan) {
  for (int64_t count : {1, 15, 16, 17, 40}) {
    for (int64_t at = 0; at < count; ++at) {
      std::vector<float> x(count, -5.0f);
      x[at] = -4.0f;
      ASSERT_EQ(MaxInLanes(x.data(), count), -4.0f);
      x[at] = std::nanf("");
      ASSERT_TRUE(std::isnan(MaxInLanes(x.data(), count))) << at;
    }
  }
  EXPECT_EQ(MaxInLanes<float>(nullptr, 0), -kInf);
}

}  // namespace
}  // namespace holdfast::kernels
