// The GPU's flat kernels, run on the host, against their CPU twins: the same
// bits.

#include "kernels/cuda_elementwise.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaElementwiseTest : public testing::Test {};
TYPED_TEST_SUITE(CudaElementwiseTest, ComputeTypes);

const int64_t kCounts[] = {0, 1, 7, 8, 2047, 2049, 70001};

TYPED_TEST(CudaElementwiseTest, AddScaleAndAccumulateHaveTheCpusBits) {
  using T = TypeParam;
  for (int64_t count : kCounts) {
    for (int64_t offset : {0, 1, 4, 8}) {
      SCOPED_TRACE(testing::Message() << count << " from " << offset);
      const Placed<T> x(count, offset, 1);
      const Placed<T> y(count, 0, 2);
      const Placed<float> sum(count, 0, 3);
      Placed<T> added = y;
      Placed<T> scaled = x;
      Placed<float> accumulated = sum;
      Add(CpuStream(), x.data(), y.data(), added.data(), count);
      Scale(CpuStream(), scaled.data(), 0.37f, count);
      Accumulate(CpuStream(), x.data(), accumulated.data(), count);
      const std::string got = SameOnAnyGrid([&](const auto& run) {
        Placed<T> a = y;
        Placed<T> s = x;
        Placed<float> acc = sum;
        RunAdd(x.data(), a.data(), a.data(), count, run);  // In place.
        RunScale(s.data(), 0.37f, count, run);
        RunAccumulate(x.data(), acc.data(), count, run);
        return BytesOf(a.all, s.all, acc.all);
      });
      EXPECT_EQ(got == BytesOf(added.all, scaled.all, accumulated.all), true);
    }
  }
}

TEST(CudaFlatTest, CastsHaveTheCpusBits) {
  for (int64_t count : kCounts) {
    for (int64_t offset : {0, 1, 4}) {
      Placed<float> wide(count, offset, 1);
      const Placed<Bf16> narrow(count, 0, 2);
      if (count > 3) {
        wide.data()[0] = std::numeric_limits<float>::quiet_NaN();
        wide.data()[1] = -std::numeric_limits<float>::infinity();
        wide.data()[2] = 3.4e38f;  // Rounds to infinity.
        wide.data()[3] = 1e-40f;   // Subnormal.
      }
      Placed<Bf16> narrowed = narrow;
      Placed<float> widened = wide;
      Cast(CpuStream(), wide.data(), narrowed.data(), count);
      Cast(CpuStream(), narrow.data(), widened.data(), count);
      const std::string got = SameOnAnyGrid([&](const auto& run) {
        Placed<Bf16> n = narrow;
        Placed<float> w = wide;
        RunCast(wide.data(), n.data(), count, run);
        RunCast(narrow.data(), w.data(), count, run);
        return BytesOf(n.all, w.all);
      });
      EXPECT_EQ(got == BytesOf(narrowed.all, widened.all), true) << count;
    }
  }
}

TEST(CudaFlatTest, SumsOfSquaresHaveTheCpusBits) {
  for (int64_t count : {0, 1, 3, 5, 8, 2044, 2047, 2048, 2053, 300000}) {
    for (int64_t offset : {0, 1}) {
      SCOPED_TRACE(testing::Message() << count << " from " << offset);
      const Placed<float> x(count, offset, 1, 1e3f);
      std::vector<double> sums(static_cast<size_t>(BlockCount(count)) + 1, 7.0);
      std::vector<double> total(1, 7.0);
      BlockSumsOfSquares(CpuStream(), x.data(), count, sums.data());
      SumOfSquares(CpuStream(), x.data(), count, total.data());
      const std::string got = SameOnAnyGrid([&](const auto& run) {
        std::vector<double> s(sums.size(), 7.0);
        std::vector<double> t(1, 9.0);
        std::vector<double> scratch(
            static_cast<size_t>(SumOfSquaresScratch(count)), 5.0);
        RunBlockSums(x.data(), count, s.data(), run);
        RunSumOfSquares(x.data(), count, t.data(), scratch.data(), run);
        return BytesOf(s, t);
      });
      EXPECT_EQ(got == BytesOf(sums, total), true);
      // In windows of three blocks.
      std::vector<double> windowed(1, 9.0);
      std::vector<double> scratch(3);
      RunSumOfSquares(x.data(), count, windowed.data(), scratch.data(),
                      HostRunner{}, 3);
      EXPECT_EQ(windowed, total);
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels
