// tools/ckptctl/compare.cc: see compare.h.

#include "tools/ckptctl/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace holdfast::tools {
namespace {

double FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// IEEE 754 binary16.
double FromF16(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) {
    return fraction == 0 ? sign * INFINITY : std::nan("");
  }
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

template <typename Bits, typename Convert>
void CompareAs(std::span<const std::byte> a, std::span<const std::byte> b,
               Convert convert, Difference* difference) {
  const size_t count = a.size() / sizeof(Bits);
  difference->elements += count;
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  for (size_t i = 0; i < count; ++i) {
    Bits x;
    Bits y;
    std::memcpy(&x, a.data() + i * sizeof(Bits), sizeof(Bits));
    std::memcpy(&y, b.data() + i * sizeof(Bits), sizeof(Bits));
    if (x == y) continue;
    ++difference->different;
    const double p = convert(x);
    const double q = convert(y);
    if (std::isnan(p) || std::isnan(q)) {
      ++difference->nan_count;
      continue;
    }
    const double gap = std::abs(p - q);
    const double scale = std::max(std::abs(p), std::abs(q));
    difference->abs_max = std::max(difference->abs_max, gap);
    if (scale > 0 && std::isfinite(scale)) {
      difference->rel_max = std::max(difference->rel_max, gap / scale);
    }
  }
}

}  // namespace

void Compare(ckpt::DType dtype, std::span<const std::byte> a,
             std::span<const std::byte> b, Difference* difference) {
  switch (dtype) {
    case ckpt::DType::kBf16:
      return CompareAs<uint16_t>(a, b, FromBf16, difference);
    case ckpt::DType::kF16:
      return CompareAs<uint16_t>(a, b, FromF16, difference);
    case ckpt::DType::kF32:
      return CompareAs<uint32_t>(
          a, b,
          [](uint32_t bits) -> double { return std::bit_cast<float>(bits); },
          difference);
    case ckpt::DType::kF64:
      return CompareAs<uint64_t>(
          a, b, [](uint64_t bits) { return std::bit_cast<double>(bits); },
          difference);
    case ckpt::DType::kI32:
      return CompareAs<uint32_t>(
          a, b,
          [](uint32_t bits) -> double { return static_cast<int32_t>(bits); },
          difference);
    case ckpt::DType::kI64:
      return CompareAs<uint64_t>(
          a, b,
          [](uint64_t bits) -> double { return static_cast<int64_t>(bits); },
          difference);
    case ckpt::DType::kU8:
      return CompareAs<uint8_t>(
          a, b, [](uint8_t bits) -> double { return bits; }, difference);
  }
}

}  // namespace holdfast::tools
