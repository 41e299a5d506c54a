// The host's block of GPU threads: phases, values, shared memory, and the order
// of its reductions, which is that of the device.

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/cuda_host_block.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

// sums[r] of each row, through every tool that a block has.
struct RowSums {
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = 64 * sizeof(float);
  const float* x;
  float* sums;
  int64_t rows;
  int64_t columns;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    float* parts = block.template shared<float>();
    for (int64_t row = block.index(); row < rows; row += block.count()) {
      block.ForEach([&](int thread) {
        parts[thread] = 0.0f;
        for (int64_t c = thread; c < columns; c += kThreads) {
          parts[thread] += x[row * columns + c];
        }
      });
      auto sum = block.template PerThread<float>();
      // The neighbour's: shared memory crosses the barrier.
      block.ForEach([&](int thread) { sum[thread] = parts[thread ^ 1]; });
      block.template Reduce<kThreads>(sum, Plus{});
      block.ForEach([&](int thread) {
        if (thread == 17) sums[row] = sum[thread];
      });
    }
  }
};

TEST(CudaBlockTest, RowSumsDoNotDependOnBlocksOrOrder) {
  const int64_t rows = 13;
  const int64_t columns = 301;
  const std::vector<float> x = RandomValues<float>(rows * columns, 1);
  std::vector<float> first(rows);
  RunOnHost(RowSums{x.data(), first.data(), rows, columns}, rows);
  for (int64_t r = 0; r < rows; ++r) {
    double plain = 0.0;
    for (int64_t c = 0; c < columns; ++c) plain += x[r * columns + c];
    EXPECT_NEAR(first[r], plain, 1e-4);
  }
  for (int64_t blocks : {1, 4, 20}) {
    for (HostOrder order : {HostOrder::kForward, HostOrder::kBackward}) {
      std::vector<float> sums(rows);
      RunOnHost(RowSums{x.data(), sums.data(), rows, columns}, blocks, order);
      EXPECT_EQ(sums, first) << blocks;
    }
  }
}

template <int kGroup>
void ExpectStatedOrder() {
  constexpr int kThreads = 256;
  const std::vector<float> x = RandomValues<float>(kThreads, 2);
  HostBlock block(kThreads, 0, 1, 0, HostOrder::kForward);
  auto values = block.PerThread<float>();
  block.ForEach([&](int thread) { values[thread] = x[thread]; });
  block.Reduce<kGroup>(values, Plus{});
  for (int group = 0; group < kThreads / kGroup; ++group) {
    // Halves joined: inside each warp first, then over the warps.
    std::vector<float> sums(x.begin() + group * kGroup,
                            x.begin() + (group + 1) * kGroup);
    const auto halve = [&](size_t first, size_t length) {
      for (size_t half = length / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; ++i) {
          sums[first + i] = sums[first + i] + sums[first + i + half];
        }
      }
    };
    const size_t warp = std::min(kGroup, 32);
    for (size_t at = 0; at < sums.size(); at += warp) halve(at, warp);
    std::vector<float> of_warps;
    for (size_t at = 0; at < sums.size(); at += warp) {
      of_warps.push_back(sums[at]);
    }
    sums = of_warps;
    halve(0, sums.size());
    for (int t = group * kGroup; t < (group + 1) * kGroup; ++t) {
      EXPECT_EQ(values[t], sums[0]) << kGroup << " thread " << t;
    }
  }
}

TEST(CudaBlockTest, ReductionsHaveTheStatedOrderAndReachEveryThread) {
  ExpectStatedOrder<1>();
  ExpectStatedOrder<8>();
  ExpectStatedOrder<32>();
  ExpectStatedOrder<64>();
  ExpectStatedOrder<256>();
}

TEST(CudaBlockTest, MaximumPassesNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int at : {0, 31, 32, 63}) {
    HostBlock block(64, 0, 1, 0, HostOrder::kForward);
    auto values = block.PerThread<float>();
    block.ForEach(
        [&](int thread) { values[thread] = thread == at ? nan : thread; });
    block.Reduce<64>(values, Maximum{});
    EXPECT_TRUE(std::isnan(values[5])) << at;
  }
  HostBlock block(64, 0, 1, 0, HostOrder::kForward);
  auto values = block.PerThread<float>();
  block.ForEach(
      [&](int thread) { values[thread] = static_cast<float>(thread); });
  block.Reduce<64>(values, Maximum{});
  EXPECT_EQ(values[0], 63.0f);
}

TEST(CudaBlockTest, NothingStartsAsZero) {
  HostBlock block(32, 0, 1, 16, HostOrder::kForward);
  EXPECT_NE(block.PerThread<int>()[31], 0);
  EXPECT_NE(block.shared<int>()[3], 0);
}

}  // namespace
}  // namespace holdfast::kernels
