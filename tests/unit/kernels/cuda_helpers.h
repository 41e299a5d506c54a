// tests/unit/kernels/cuda_helpers.h: runs a GPU kernel on the host under every
// grid, and compares it with its CPU twin.

#ifndef HOLDFAST_TESTS_UNIT_KERNELS_CUDA_HELPERS_H_
#define HOLDFAST_TESTS_UNIT_KERNELS_CUDA_HELPERS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda_host_block.h"
#include "tests/support/fiber_block.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {

// The bytes of arrays, every NaN of which is the same: which one a sum of two
// gives is the compiler's choice of their order.
template <typename... Vectors>
std::string BytesOf(const Vectors&... vectors) {
  std::string bytes;
  const auto append = [&](auto values) {
    using T = std::decay_t<decltype(values[0])>;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Bf16>) {
      for (T& value : values) {
        if (std::isnan(ToFloat(value))) value = FromFloat<T>(NAN);
      }
    }
    bytes.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(values[0]));
  };
  (append(vectors), ...);
  return bytes;
}

// work(runner) starts from fresh inputs, runs a kernel and returns the bytes of
// its results: the same on any number of blocks, and in any order of blocks and
// threads. Returns them. Fibers take a millisecond for each block's Reduce.
template <typename Work>
std::string SameOnAnyGrid(const Work& work, bool with_fibers = true) {
  const std::string expected = work(HostRunner{});
  for (int64_t max_blocks : {1, 3, 32768}) {
    for (HostOrder order : {HostOrder::kForward, HostOrder::kBackward}) {
      EXPECT_EQ(work(HostRunner{order, max_blocks}) == expected, true)
          << "another answer on at most " << max_blocks << " blocks, order "
          << static_cast<int>(order);
    }
  }
#ifndef __SANITIZE_THREAD__
  // Each thread on its own: barriers that are missing show here.
  for (HostOrder order : {HostOrder::kForward, HostOrder::kBackward}) {
    if (!with_fibers) break;
    EXPECT_EQ(work(FiberRunner{order, 3}) == expected, true)
        << "another answer of threads on their own, order "
        << static_cast<int>(order);
  }
#endif
  return expected;
}

// A unit in the last place of T, relative to the value.
template <typename T>
constexpr double kUnit = std::is_same_v<T, Bf16> ? 1.0 / 128 : 1.2e-7;

// Every |actual - expected| is at most tolerance * scale, and one unit of T.
template <typename T>
void ExpectWithin(const T* actual, const T* expected, int64_t count,
                  double tolerance, double scale) {
  for (int64_t i = 0; i < count; ++i) {
    const double want = ToFloat(expected[i]);
    ASSERT_NEAR(ToFloat(actual[i]), want,
                tolerance * scale + kUnit<T> * std::abs(want))
        << "at " << i;
  }
}

template <typename T>
double Largest(const T* values, int64_t count) {
  double largest = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max<double>(largest, std::abs(ToFloat(values[i])));
  }
  return largest;
}

// An array of `count` values whose first stands `offset` elements after an
// address that packs may be loaded from.
template <typename T>
struct Placed {
  std::vector<T> all;
  int64_t offset;

  Placed(int64_t count, int64_t offset_elements, uint64_t seed,
         float scale = 1.0f)
      : all(RandomValues<T>(count + offset_elements, seed, scale)),
        offset(offset_elements) {}

  T* data() { return all.data() + offset; }
  const T* data() const { return all.data() + offset; }
  int64_t size() const { return static_cast<int64_t>(all.size()) - offset; }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_UNIT_KERNELS_CUDA_HELPERS_H_
