// ckpt/format/mix.h: 64 bits well mixed, for digests and for hashes of plans.

#ifndef HOLDFAST_CKPT_FORMAT_MIX_H_
#define HOLDFAST_CKPT_FORMAT_MIX_H_

#include <cstdint>

namespace holdfast::ckpt {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014; the constants are David
// Stafford's variant 13): a bijection in which each input bit changes about
// half of the output bits.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// 2^64 divided by the golden ratio: its multiples are spread evenly.
inline constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15;

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_MIX_H_
