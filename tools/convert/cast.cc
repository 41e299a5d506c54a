// tools/convert/cast.cc: the conversions by their bits, so that they are the
// same with every compiler and processor.

#include "tools/convert/cast.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "ckpt/base/check.h"
#include "kernels/bf16.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

// To the neighbour whose last bit is 1 unless exact (Boldo and Melquiond,
// "Emulation of a FMA and correctly rounded sums", 2008: a later rounding to
// nearest of at least two bits less is then that of the value itself).
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value)) return nearest;
  if (std::isinf(nearest)) {
    return std::isinf(value)
               ? nearest
               : std::copysign(3.40282346638528859812e+38f, nearest);
  }
  if (static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  const bool above = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  bits = above ? bits - 1 : bits + 1;
  return std::bit_cast<float>(bits);
}

struct OfBf16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) {
    return kernels::ToFloat(kernels::Bf16{bits});
  }
  static uint16_t Narrow(float value) {
    return kernels::RoundToBf16(value).bits;
  }
};
struct OfF16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) { return F32FromF16(bits); }
  static uint16_t Narrow(float value) { return F16FromF32(value); }
};
struct OfF32 {
  using Stored = float;
  static float Widen(float value) { return value; }
  static float Narrow(float value) { return value; }
};

template <typename To, typename FromStored, typename Widen>
int64_t Loop(std::span<const std::byte> in, std::span<std::byte> out,
             Widen widen) {
  using ToStored = typename To::Stored;
  const size_t count = in.size() / sizeof(FromStored);
  HF_CHECK(out.size() == count * sizeof(ToStored), "%d bytes for %d elements",
           out.size(), count);
  int64_t became_infinite = 0;
  for (size_t i = 0; i < count; ++i) {
    FromStored stored;
    std::memcpy(&stored, in.data() + i * sizeof(stored), sizeof(stored));
    const float value = widen(stored);
    const ToStored narrow = To::Narrow(value);
    became_infinite += std::isfinite(static_cast<double>(value)) &&
                       std::isinf(To::Widen(narrow));
    std::memcpy(out.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  return became_infinite;
}

template <typename To>
int64_t CastTo(DType from, std::span<const std::byte> in,
               std::span<std::byte> out) {
  switch (from) {
    case DType::kBf16:
      return Loop<To, uint16_t>(in, out, OfBf16::Widen);
    case DType::kF16:
      return Loop<To, uint16_t>(in, out, OfF16::Widen);
    case DType::kF32:
      return Loop<To, float>(in, out, OfF32::Widen);
    default:
      return Loop<To, double>(in, out, RoundToOdd);
  }
}

// F64 to F32 is one rounding, to nearest.
int64_t F64ToF32(std::span<const std::byte> in, std::span<std::byte> out) {
  int64_t became_infinite = 0;
  for (size_t i = 0; i < in.size() / sizeof(double); ++i) {
    double value;
    std::memcpy(&value, in.data() + i * sizeof(value), sizeof(value));
    const float narrow = static_cast<float>(value);
    became_infinite += std::isfinite(value) && std::isinf(narrow);
    std::memcpy(out.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  return became_infinite;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 ||
         dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace

uint16_t F16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {  // NaN: quiet, with what fits of its payload
    return static_cast<uint16_t>(sign | 0x7e00u | (size >> 13 & 0x1ffu));
  }
  if (size >= 0x47800000u) return sign | 0x7c00u;  // 65,536 and above
  if (size < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    // Adding 1/2 puts the unit of the last place at 2^-24, rounded to even.
    const float sum = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t moved = size - (112u << 23);  // the exponents' difference
  const uint32_t rounded = moved + 0xfffu + (moved >> 13 & 1u);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float F32FromF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(size));
  }
  const uint32_t widened = exponent == 0x1f ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

bool CanCast(DType from, DType to) {
  if (from == to) return true;
  return IsFloat(from) && IsFloat(to) && to != DType::kF64;
}

int64_t CastElements(DType from, std::span<const std::byte> in, DType to,
                     std::span<std::byte> out) {
  HF_CHECK(CanCast(from, to), "no cast from %d to %d", static_cast<int>(from),
           static_cast<int>(to));
  if (from == to) {
    HF_CHECK(in.size() == out.size(), "%d and %d bytes", in.size(), out.size());
    if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
    return 0;
  }
  switch (to) {
    case DType::kBf16:
      return CastTo<OfBf16>(from, in, out);
    case DType::kF16:
      return CastTo<OfF16>(from, in, out);
    default:
      return from == DType::kF64 ? F64ToF32(in, out)
                                 : CastTo<OfF32>(from, in, out);
  }
}

}  // namespace holdfast::tools
