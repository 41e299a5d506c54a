// The sum must be the exact one, rounded once, whatever the order.

#include "trainer/parallel/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

double Sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.Add(value);
  return sum.Round();
}

// Shewchuk's exact sum by non-overlapping partials, with the correction of ties
// that Python's math.fsum makes: another method with the same answer.
double PartialsSum(const std::vector<double>& values) {
  std::vector<double> partials;
  for (double x : values) {
    size_t kept = 0;
    for (double y : partials) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      const double high = x + y;
      const double low = y - (high - x);
      if (low != 0) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    partials.push_back(x);
  }
  if (partials.empty()) return 0;
  size_t n = partials.size() - 1;
  double high = partials[n];
  double low = 0;
  while (n > 0) {
    const double x = high;
    const double y = partials[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0) break;
  }
  if (n > 0 &&
      ((low < 0 && partials[n - 1] < 0) || (low > 0 && partials[n - 1] > 0))) {
    const double y = low * 2;
    const double x = high + y;
    if (y == x - high) high = x;
  }
  return high;
}

std::vector<double> RandomValues(uint64_t seed, int count, int exponent_span) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const uint64_t bits = ckpt::Philox64(seed, 1, static_cast<uint64_t>(i));
    const int exponent =
        static_cast<int>(ckpt::Philox64(seed, 2, static_cast<uint64_t>(i)) %
                         static_cast<uint64_t>(exponent_span)) -
        exponent_span / 2;
    const double mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
    values.push_back(
        std::ldexp((bits & 1) != 0 ? -mantissa : mantissa, exponent));
  }
  return values;
}

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

TEST(ExactSumTest, KnowsTheSimpleCases) {
  EXPECT_EQ(Bits(Sum({})), Bits(0.0));
  EXPECT_EQ(Sum({1.5}), 1.5);
  EXPECT_EQ(Sum({-0.1}), -0.1);
  EXPECT_EQ(Sum({0.1, 0.2, 0.3, -0.6}), 0x1p-55);  // Not zero: exact.
  EXPECT_EQ(Sum({1e308, -1e308, 3}), 3);
  EXPECT_EQ(Bits(Sum({5, -5})), Bits(0.0));
}

TEST(ExactSumTest, CancellationLosesNothing) {
  EXPECT_EQ(Sum({1e100, 1, -1e100}), 1);
  EXPECT_EQ(Sum({1e300, kTiny, -1e300}), kTiny);
  EXPECT_EQ(Sum({0x1p53, 1, 1, -0x1p53}), 2);
}

TEST(ExactSumTest, RoundsOnceToNearestEven) {
  EXPECT_EQ(Sum({1, 0x1p-53}), 1);                      // Tie, down to even.
  EXPECT_EQ(Sum({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51);  // Tie, up to even.
  EXPECT_EQ(Sum({1, 0x1p-53, kTiny}), 1 + 0x1p-52);     // Above the tie.
  EXPECT_EQ(Sum({1, 0x1p-53, -kTiny}), 1);              // Below the tie.
  EXPECT_EQ(Sum({-1, -0x1p-53, -kTiny}), -1 - 0x1p-52);
}

TEST(ExactSumTest, SubnormalsAreOrdinaryNumbers) {
  EXPECT_EQ(Sum({kTiny, kTiny, kTiny}), 3 * kTiny);
  EXPECT_EQ(Sum({0x1p-1022, -kTiny}), 0x1p-1022 - kTiny);
  EXPECT_EQ(Sum({0x1p-1022, kTiny}), 0x1p-1022 + kTiny);
  EXPECT_EQ(Sum({-kTiny}), -kTiny);
}

TEST(ExactSumTest, OverflowOnlyWhenTheSumItselfIsTooLarge) {
  const double max = std::numeric_limits<double>::max();
  EXPECT_EQ(Sum({max, max, -max, -max, 7}), 7);
  EXPECT_EQ(Sum({max, max}), kInf);
  EXPECT_EQ(Sum({-max, -max}), -kInf);
  EXPECT_EQ(Sum({max, 1}), max);
  EXPECT_EQ(Sum({max, std::ldexp(1.0, 970)}), kInf);  // Half a unit: a tie.
}

TEST(ExactSumTest, InfinitiesAndNansComeThrough) {
  EXPECT_EQ(Sum({1, kInf}), kInf);
  EXPECT_EQ(Sum({-kInf, 1e308}), -kInf);
  EXPECT_TRUE(std::isnan(Sum({kInf, -kInf})));
  EXPECT_TRUE(std::isnan(Sum({1, std::nan("")})));
}

TEST(ExactSumTest, AgreesWithAnotherExactMethod) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    for (const int span : {4, 60, 600}) {
      const std::vector<double> values =
          RandomValues(seed, static_cast<int>(1 + seed % 50), span);
      EXPECT_EQ(Bits(Sum(values)), Bits(PartialsSum(values)))
          << "seed " << seed << ", span " << span;
    }
  }
}

TEST(ExactSumTest, AgreesWithIntegers) {
  int64_t exact = 0;
  ExactSum sum;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const int64_t value = static_cast<int64_t>(ckpt::Philox64(9, 9, i) >> 16) -
                          (int64_t{1} << 47);
    exact += value;
    sum.Add(static_cast<double>(value));
  }
  EXPECT_EQ(sum.Round(), static_cast<double>(exact));
}

TEST(ExactSumTest, NeitherOrderNorNumberOfRanksMatters) {
  std::vector<double> values = RandomValues(3, 6000, 400);
  const uint64_t expected = Bits(Sum(values));
  std::sort(values.begin(), values.end());
  EXPECT_EQ(Bits(Sum(values)), expected);
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(Bits(Sum(values)), expected);
  EXPECT_NE(Bits(std::accumulate(values.begin(), values.end(), 0.0)), expected)
      << "an ordinary sum would do";

  for (const int ranks : {1, 2, 3, 8}) {
    const absl::Status status = RunInprocRanks(ranks, [&](Collectives& world) {
      ExactSum mine;
      for (size_t i = static_cast<size_t>(world.rank()); i < values.size();
           i += static_cast<size_t>(ranks)) {
        mine.Add(values[i]);
      }
      mine.Normalize();
      if (absl::Status s = world.AllReduceSum(mine.words()); !s.ok()) {
        return s;
      }
      EXPECT_EQ(Bits(mine.Round()), expected) << ranks << " ranks";
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ExactSumTest, PartialSumsAddUp) {
  const std::vector<double> values = RandomValues(4, 100, 200);
  ExactSum left, right;
  for (size_t i = 0; i < values.size(); ++i) {
    (i < 37 ? left : right).Add(values[i]);
  }
  left.Add(right);
  EXPECT_EQ(Bits(left.Round()), Bits(Sum(values)));
}

}  // namespace
}  // namespace holdfast::trainer
