// trainer/data/permutation.h: a shuffle that nobody has to remember.
//
// Permute(key, n, i) is a bijection of 0 to n - 1 for every key, computed for
// one i at a time: a Feistel network over the smallest even number of bits that
// holds n, with Philox as its round function, walked along its cycle until the
// value is below n (Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002, there called cycle walking).
//
// Pure. The domain is below 4 n, so a call walks 4 times at most on average;
// measured 0.2 to 0.8 us.

#ifndef HOLDFAST_TRAINER_DATA_PERMUTATION_H_
#define HOLDFAST_TRAINER_DATA_PERMUTATION_H_

#include <bit>
#include <cstdint>

#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"

namespace holdfast::trainer {

// 1 <= n <= 2^62, i < n.
inline uint64_t Permute(uint64_t key, uint64_t n, uint64_t i) {
  HF_CHECK(i < n && n <= uint64_t{1} << 62, "element %d of %d", i, n);
  if (n == 1) return 0;
  // Four rounds mix well enough for pseudo-random functions of wide halves
  // (Luby and Rackoff); small sets have narrow ones, so there are eight.
  constexpr uint32_t kRounds = 8;
  const int half_bits = (std::bit_width(n - 1) + 1) / 2;
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = i >> half_bits;
    uint64_t right = i & half_mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t next =
          left ^ (ckpt::Philox64(key, round, right) & half_mask);
      left = right;
      right = next;
    }
    i = left << half_bits | right;
  } while (i >= n);
  return i;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_PERMUTATION_H_
