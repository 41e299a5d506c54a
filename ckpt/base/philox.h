// ckpt/base/philox.h: counter-based random numbers, Philox4x32-10.
//
// A pure function of (key, counter): there is no generator state to save, and
// the value at a logical coordinate does not depend on who asks for it.
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11; the test
// checks the known answers published with Random123.

#ifndef HOLDFAST_CKPT_BASE_PHILOX_H_
#define HOLDFAST_CKPT_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace holdfast::ckpt {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// 64 random bits for (seed, stream, index).
constexpr uint64_t Philox64(uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxCounter out = Philox(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{out[0]} | uint64_t{out[1]} << 32;
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_PHILOX_H_
