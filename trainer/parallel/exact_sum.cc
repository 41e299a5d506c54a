// trainer/parallel/exact_sum.cc: see the header.

#include "trainer/parallel/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace holdfast::trainer {
namespace {

constexpr int kLimbBits = 32;
constexpr int64_t kLimbMask = 0xffffffff;
constexpr int kMantissaBits = 52;
constexpr uint64_t kMantissaMask = (uint64_t{1} << kMantissaBits) - 1;
constexpr int kExponentMask = 0x7ff;

}  // namespace

void ExactSum::Add(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const bool negative = (bits >> 63) != 0;
  const int exponent = static_cast<int>(bits >> kMantissaBits) & kExponentMask;
  uint64_t mantissa = bits & kMantissaMask;
  if (exponent == kExponentMask) {
    ++words_[mantissa != 0 ? kNans
             : negative    ? kNegativeInfinities
                           : kPositiveInfinities];
    return;
  }
  // value = mantissa * 2^(shift - 1074); a subnormal has shift 0 as the
  // smallest normal numbers do, but no hidden bit.
  int shift = 0;
  if (exponent > 0) {
    mantissa |= kMantissaMask + 1;
    shift = exponent - 1;
  }
  // 53 bits, shifted by less than 32: three limbs.
  const int limb = shift / kLimbBits;
  const unsigned __int128 wide = static_cast<unsigned __int128>(mantissa)
                                 << (shift % kLimbBits);
  const int64_t low = static_cast<int64_t>(wide) & kLimbMask;
  const int64_t middle = static_cast<int64_t>(wide >> kLimbBits) & kLimbMask;
  const int64_t high = static_cast<int64_t>(wide >> (2 * kLimbBits));
  int64_t* const at = words_.data() + limb;
  if (negative) {
    at[0] -= low;
    at[1] -= middle;
    at[2] -= high;
  } else {
    at[0] += low;
    at[1] += middle;
    at[2] += high;
  }
  if (++additions_ == kAdditionsMax) Normalize();
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum carried = other;
  carried.Normalize();
  for (int i = 0; i < kWords; ++i) words_[i] += carried.words_[i];
  if (++additions_ == kAdditionsMax) Normalize();
}

void ExactSum::Normalize() {
  int64_t carry = 0;
  for (int i = 0; i < kLimbs - 1; ++i) {
    const int64_t value = words_[i] + carry;
    words_[i] = value & kLimbMask;
    carry = value >> kLimbBits;  // Rounds down, for negative values too.
  }
  words_[kLimbs - 1] += carry;  // Keeps the sign.
  additions_ = 0;
}

double ExactSum::Round() const {
  const bool up = words_[kPositiveInfinities] != 0;
  const bool down = words_[kNegativeInfinities] != 0;
  if (words_[kNans] != 0 || (up && down)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (up) return std::numeric_limits<double>::infinity();
  if (down) return -std::numeric_limits<double>::infinity();

  // Magnitude, in limbs of [0, 2^32).
  ExactSum magnitude = *this;
  magnitude.Normalize();
  const bool negative = magnitude.words_[kLimbs - 1] < 0;
  if (negative) {
    for (int i = 0; i < kLimbs; ++i) magnitude.words_[i] = -magnitude.words_[i];
    magnitude.Normalize();
  }
  int top = kLimbs - 1;
  while (top >= 0 && magnitude.words_[top] == 0) --top;
  if (top < 0) return 0.0;

  // The top limbs as a window of 65 to 96 bits, with a sticky bit for the rest.
  const auto limb = [&](int i) -> uint64_t {
    return i < 0 ? 0 : static_cast<uint64_t>(magnitude.words_[i]);
  };
  const int top_bits = std::bit_width(limb(top));  // 1 to 63.
  unsigned __int128 window = limb(top);
  window = window << kLimbBits | limb(top - 1);
  int lowest = top - 1;  // Index of the window's lowest limb.
  if (top_bits <= kLimbBits) {
    window = window << kLimbBits | limb(top - 2);
    lowest = top - 2;
  }
  // Weight of the window's bit 0, as a power of two above 2^-1074.
  int weight = lowest * kLimbBits;
  bool sticky = false;
  for (int i = 0; i < lowest; ++i) sticky |= magnitude.words_[i] != 0;

  // 53 bits are kept, fewer only where the number is subnormal: bit 0 of a
  // double never weighs less than 2^-1074.
  const auto width = [](unsigned __int128 value) {
    const uint64_t high = static_cast<uint64_t>(value >> 64);
    return high != 0 ? 64 + std::bit_width(high)
                     : std::bit_width(static_cast<uint64_t>(value));
  };
  int drop = width(window) - (kMantissaBits + 1);
  if (weight + drop < 0) drop = -weight;
  // The window has at least 65 bits, so something is always dropped.
  const unsigned __int128 tail =
      window & ((static_cast<unsigned __int128>(1) << drop) - 1);
  const unsigned __int128 half = static_cast<unsigned __int128>(1)
                                 << (drop - 1);
  uint64_t kept = static_cast<uint64_t>(window >> drop);
  if (tail > half || (tail == half && (sticky || (kept & 1) != 0))) ++kept;
  weight += drop;
  // kept <= 2^53 converts exactly; ldexp is exact or overflows to infinity.
  const double result = std::ldexp(static_cast<double>(kept), weight - 1074);
  return negative ? -result : result;
}

}  // namespace holdfast::trainer
