// kernels/vector.h: loops compiled for several instruction sets, and sums whose
// order is the same on all of them. Internal to kernels/.
//
// A function marked HOLDFAST_VECTOR_CLONES is compiled for AVX-512, AVX2 and
// the baseline; the loader picks one. Since nothing is contracted into fused
// multiply-adds and every sum spells out its lanes, all three give the same
// bits.

#ifndef HOLDFAST_KERNELS_VECTOR_H_
#define HOLDFAST_KERNELS_VECTOR_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"

// The loader picks a clone before a sanitizer's runtime is up, and the picking
// code is instrumented too: sanitized builds have the baseline only.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HOLDFAST_VECTOR_CLONES
#else
#define HOLDFAST_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

// Lanes never cross a real call, so how a call would pass them is of no
// interest.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace holdfast::kernels {

// Sixteen floats: one AVX-512 register, two of AVX2, four of the baseline.
inline constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef float EightLanes __attribute__((vector_size(32)));
typedef float FourLanes __attribute__((vector_size(16)));
typedef uint32_t LaneBits __attribute__((vector_size(64)));
typedef uint16_t LaneHalves __attribute__((vector_size(32)));

template <typename T>
[[gnu::always_inline]] inline Lanes LoadLanes(const T* from) {
  if constexpr (std::is_same_v<T, Bf16>) {
    LaneHalves halves;
    std::memcpy(&halves, from, sizeof(halves));
    return std::bit_cast<Lanes>(__builtin_convertvector(halves, LaneBits)
                                << 16);
  } else {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
}

// The first `count` lanes from memory, the rest `fill`.
template <typename T>
[[gnu::always_inline]] inline Lanes LoadSomeLanes(const T* from, int64_t count,
                                                  float fill) {
  Lanes lanes;
  for (int64_t i = 0; i < kLanes; ++i) {
    lanes[i] = i < count ? ToFloat(from[i]) : fill;
  }
  return lanes;
}

// Pairwise: lane i with lane i + 8, then i + 4, i + 2, i + 1.
[[gnu::always_inline]] inline float SumOfLanes(const Lanes& lanes) {
  EightLanes halves[2];
  std::memcpy(halves, &lanes, sizeof(halves));
  const EightLanes eight = halves[0] + halves[1];
  FourLanes quarters[2];
  std::memcpy(quarters, &eight, sizeof(quarters));
  const FourLanes four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Element i joins lane i % 16 in increasing i; then SumOfLanes.
[[gnu::always_inline]] inline float SumInLanes(const float* x, int64_t count) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sums += LoadLanes(x + i);
  if (i < count) sums += LoadSomeLanes(x + i, count - i, 0.0f);
  return SumOfLanes(sums);
}

// The sum of x[i] * y[i] in the same order.
template <typename X, typename Y>
[[gnu::always_inline]] inline float DotInLanes(const X* x, const Y* y,
                                               int64_t count) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sums += LoadLanes(x + i) * LoadLanes(y + i);
  }
  if (i < count) {
    sums += LoadSomeLanes(x + i, count - i, 0.0f) *
            LoadSomeLanes(y + i, count - i, 0.0f);
  }
  return SumOfLanes(sums);
}

// The larger of two; NaN if either is.
[[gnu::always_inline]] inline float Larger(float x, float y) {
  return (x > y || x != x) ? x : y;
}

// The largest of x, -infinity when count is 0; NaN if any is.
template <typename T>
[[gnu::always_inline]] inline float MaxInLanes(const T* x, int64_t count) {
  constexpr float kNone = -__builtin_inff();
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kNone);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = Larger(ToFloat(x[i + lane]), lanes[lane]);
    }
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    lanes[lane] = Larger(ToFloat(x[i + lane]), lanes[lane]);
  }
  EightLanes halves[2];
  std::memcpy(halves, lanes, sizeof(halves));
  const EightLanes eight = (halves[0] > halves[1]) | (halves[0] != halves[0])
                               ? halves[0]
                               : halves[1];
  FourLanes quarters[2];
  std::memcpy(quarters, &eight, sizeof(quarters));
  const FourLanes four =
      (quarters[0] > quarters[1]) | (quarters[0] != quarters[0]) ? quarters[0]
                                                                 : quarters[1];
  return Larger(Larger(four[0], four[1]), Larger(four[2], four[3]));
}

// exp(x) within 2 units in the last place; 0 below -87.33, where the result
// would be subnormal, infinity above 88.72, NaN for NaN. Without branches, so
// that a loop around it is vectorised.
[[gnu::always_inline]] inline float Exp(float x) {
  constexpr float kLowest = -87.33f;
  constexpr float kHighest = 88.72f;
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to a whole
  // number, which then stands in the low bits.
  constexpr float kRounder = 12582912.0f;
  const float shifted = clamped * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  // ln 2 in two parts; n * the first is exact, having 9 + 8 bits.
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  // The series to r^7: the next term is below 6e-9.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, since n may be 128.
  const int32_t whole =
      std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRounder);
  const int32_t half = whole >> 1;
  const float result = p * std::bit_cast<float>((half + 127) << 23) *
                       std::bit_cast<float>((whole - half + 127) << 23);
  const float low = x < kLowest ? 0.0f : result;
  const float high = x > kHighest ? __builtin_inff() : low;
  return x != x ? x : high;
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_VECTOR_H_
