// kernels/bf16.h: bfloat16 as a value, and the conversions every kernel uses.
//
// The model above is a template over its compute type T, float or Bf16. A
// kernel reads T, works in float and rounds once when it stores:
//
//   const float x = ToFloat(in[i]);
//   out[i] = FromFloat<T>(x * scale);
//
// The conversions are inlined by force: a loop that is compiled once per
// instruction set (kernels/vector.h) must not call out to the baseline version.
// They are the same on a GPU, except that a NaN made there is the one NaN it
// has, 0x7fff.

#ifndef HOLDFAST_KERNELS_BF16_H_
#define HOLDFAST_KERNELS_BF16_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

// The upper half of an IEEE single: 1 sign, 8 exponent and 7 fraction bits.
struct Bf16 {
  uint16_t bits = 0;

  friend bool operator==(const Bf16&, const Bf16&) = default;  // Of the bits.
};
static_assert(sizeof(Bf16) == 2);

// std::bit_cast is a host function to nvcc.
[[gnu::always_inline]] HF_HOST_DEVICE inline float FloatOfBits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

[[gnu::always_inline]] HF_HOST_DEVICE inline float ToFloat(float value) {
  return value;
}

[[gnu::always_inline]] HF_HOST_DEVICE inline float ToFloat(Bf16 value) {
  return FloatOfBits(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to the nearest, ties to even; overflow gives infinity. A NaN stays a
// NaN with its sign: the quiet bit is set, so that cutting the fraction cannot
// turn it into an infinity.
[[gnu::always_inline]] HF_HOST_DEVICE inline Bf16 RoundToBf16(float value) {
#ifdef __CUDA_ARCH__
  uint16_t rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
  return Bf16{rounded};
#else
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return Bf16{static_cast<uint16_t>(is_nan ? quiet : rounded)};
#endif
}

template <typename T>
[[gnu::always_inline]] HF_HOST_DEVICE inline T FromFloat(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return RoundToBf16(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_BF16_H_
