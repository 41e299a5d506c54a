// Flat loops against their scalar statement, and the order of sums of squares.

#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/cuda_accumulate_max.h"
#include "kernels/cuda_host_block.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class ElementwiseTest : public testing::Test {};
TYPED_TEST_SUITE(ElementwiseTest, ComputeTypes);

// Longer than one range of work, and not a multiple of anything.
constexpr int64_t kCount = 70001;

TYPED_TEST(ElementwiseTest, AddRoundsTheSumOnce) {
  const auto x = RandomValues<TypeParam>(kCount, 1);
  const auto y = RandomValues<TypeParam>(kCount, 2);
  std::vector<TypeParam> out(kCount);
  Add(CpuStream(), x.data(), y.data(), out.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(out[i], FromFloat<TypeParam>(ToFloat(x[i]) + ToFloat(y[i])));
  }
}

TYPED_TEST(ElementwiseTest, AddMayWriteOverAnInput) {
  auto x = RandomValues<TypeParam>(kCount, 1);
  const auto y = RandomValues<TypeParam>(kCount, 2);
  std::vector<TypeParam> out(kCount);
  Add(CpuStream(), x.data(), y.data(), out.data(), kCount);
  Add(CpuStream(), x.data(), y.data(), x.data(), kCount);
  EXPECT_TRUE(SameBits(x, out));
}

TYPED_TEST(ElementwiseTest, CastScaleZeroAndAccumulate) {
  auto x = RandomValues<TypeParam>(kCount, 1);
  const auto original = x;
  std::vector<float> wide(kCount, 1.0f);
  Accumulate(CpuStream(), x.data(), wide.data(), kCount);
  Scale(CpuStream(), x.data(), -3.0f, kCount);
  std::vector<float> cast(kCount);
  Cast(CpuStream(), x.data(), cast.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(wide[i], 1.0f + ToFloat(original[i]));
    ASSERT_EQ(x[i], FromFloat<TypeParam>(ToFloat(original[i]) * -3.0f));
    ASSERT_EQ(cast[i], ToFloat(x[i]));
  }
  Zero(CpuStream(), x.data(), kCount - 1);
  for (int64_t i = 0; i < kCount - 1; ++i) ASSERT_EQ(ToFloat(x[i]), 0.0f);
  EXPECT_NE(ToFloat(x[kCount - 1]), 0.0f);
}

TEST(CastTest, RoundsToBf16LikeTheScalarConversion) {
  auto x = RandomValues<float>(kCount, 4, 1e3f);
  x[7] = std::nanf("");
  x[8] = INFINITY;
  std::vector<Bf16> out(kCount);
  Cast(CpuStream(), x.data(), out.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], RoundToBf16(x[i]));
}

// The order of the header, spelled out.
double PlainBlockSum(const float* x, int64_t count) {
  double s[8] = {};
  for (int64_t i = 0; i < count; ++i) s[i % 8] += double{x[i]} * x[i];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

TEST(AccumulateMaxTest, KeepsTheLargerAndPassesNanOnBothSides) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  auto x = RandomValues<float>(1000, 7);
  auto y = RandomValues<float>(1000, 8);
  x[0] = nan;
  y[1] = nan;
  x[2] = -kInf;
  x[3] = kInf;
  std::vector<float> expected(y);
  for (size_t i = 2; i < y.size(); ++i) expected[i] = std::max(y[i], x[i]);
  for (const bool cuda_code : {false, true}) {
    std::vector<float> found(y);
    if (cuda_code) {
      const AccumulateMaxKernel kernel{x.data(), found.data(), 1000};
      RunOnHost(kernel, /*blocks=*/3, HostOrder::kBackward);
    } else {
      AccumulateMax(CpuStream(), x.data(), found.data(), 1000);
    }
    EXPECT_TRUE(std::isnan(found[0]));
    EXPECT_TRUE(std::isnan(found[1]));
    for (size_t i = 2; i < y.size(); ++i) ASSERT_EQ(found[i], expected[i]);
  }
}

TEST(SumOfSquaresTest, BlocksHaveTheStatedOrder) {
  const auto x = RandomValues<float>(kCount, 5);
  std::vector<double> sums(BlockCount(kCount), -1.0);
  BlockSumsOfSquares(CpuStream(), x.data(), kCount, sums.data());
  for (int64_t b = 0; b < BlockCount(kCount); ++b) {
    const int64_t at = b * kBlockElements;
    ASSERT_EQ(sums[b], PlainBlockSum(x.data() + at,
                                     std::min(kBlockElements, kCount - at)));
  }
}

TEST(SumOfSquaresTest, DoesNotDependOnHowBlocksAreHeldOrOnThreads) {
  // Three windows of the whole-array version, cut at block 700 between holders.
  const int64_t count = 2100 * kBlockElements + 99;
  const auto x = RandomValues<float>(count, 6);
  double total = 0.0;
  SumOfSquares(CpuStream(), x.data(), count, &total);

  std::vector<double> sums(BlockCount(count));
  const int64_t cut = 700 * kBlockElements;
  BlockSumsOfSquares(CpuStream(), x.data(), cut, sums.data());
  BlockSumsOfSquares(CpuStream(), x.data() + cut, count - cut,
                     sums.data() + 700);
  double joined = 0.0;
  for (double sum : sums) joined += sum;
  EXPECT_EQ(joined, total);

  ExpectSameBitsOnAnyThreadCount([&] {
    std::vector<double> again(1);
    SumOfSquares(CpuStream(), x.data(), count, again.data());
    return again;
  });
  SumOfSquares(CpuStream(), x.data(), 0, &total);
  EXPECT_EQ(total, 0.0);
}

}  // namespace
}  // namespace holdfast::kernels
