// tests/unit/kernels/helpers.h: random arrays, comparisons, and the thread
// counts that must not change a bit.

#ifndef HOLDFAST_TESTS_UNIT_KERNELS_HELPERS_H_
#define HOLDFAST_TESTS_UNIT_KERNELS_HELPERS_H_

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

// Uniform in [-1, 1), rounded to T.
template <typename T>
std::vector<T> RandomValues(int64_t count, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = FromFloat<T>(scale * uniform(generator));
  return values;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Rounding to T loses at most this, relative to the value.
template <typename T>
constexpr double kRounding = std::is_same_v<T, Bf16> ? 1.0 / 256 : 1.2e-7;

// Every element within relative * max(|expected|, floor) of expected.
template <typename T, typename E>
void ExpectNear(const std::vector<T>& actual, const std::vector<E>& expected,
                double relative, double floor = 1.0) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double want = expected[i];
    const double bound = relative * std::max(std::abs(want), floor);
    ASSERT_NEAR(ToFloat(actual[i]), want, bound) << "at " << i;
  }
}

// Runs `work` at 1, 2, 8 and 32 threads; each run returns the results to
// compare. Restores the thread count.
template <typename Work>
void ExpectSameBitsOnAnyThreadCount(const Work& work) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto expected = work();
  for (int threads : {2, 8, 32}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(SameBits(expected, work())) << threads << " threads";
  }
  omp_set_num_threads(before);
}

// Checks `gradient` of the scalar `loss` at x against central differences with
// the given step: within `tolerance` of the largest gradient.
template <typename Loss>
void ExpectGradient(std::vector<float> x, const std::vector<float>& gradient,
                    const Loss& loss, float step, double tolerance) {
  ASSERT_EQ(x.size(), gradient.size());
  double largest = 0.0;
  for (float g : gradient) largest = std::max<double>(largest, std::abs(g));
  ASSERT_GT(largest, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    const float saved = x[i];
    x[i] = saved + step;
    const double above = loss(x);
    const double width = double{x[i]};
    x[i] = saved - step;
    const double below = loss(x);
    const double difference = (above - below) / (width - double{x[i]});
    x[i] = saved;
    ASSERT_NEAR(gradient[i], difference, tolerance * largest) << "at " << i;
  }
}

using ComputeTypes = testing::Types<float, Bf16>;

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_UNIT_KERNELS_HELPERS_H_
