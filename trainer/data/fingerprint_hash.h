// trainer/data/fingerprint_hash.h: 64-bit hash for fingerprints; finds
// accidents only.
//
// Eight bytes at a time through a 64 x 64 -> 128 bit product whose halves are
// folded: every input bit reaches every output bit within two rounds. Stored in
// checkpoints as the data's fingerprint, so it never changes; the test pins
// values.

#ifndef HOLDFAST_TRAINER_DATA_FINGERPRINT_HASH_H_
#define HOLDFAST_TRAINER_DATA_FINGERPRINT_HASH_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace holdfast::trainer {

class FingerprintHash {
 public:
  void Add(uint64_t word) { state_ = Fold(state_ ^ word); }
  void Add(double number) { Add(std::bit_cast<uint64_t>(number)); }

  // The length is part of it: two spans never hash as their concatenation.
  void Add(std::span<const std::byte> bytes) {
    Add(static_cast<uint64_t>(bytes.size()));
    size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + at, 8);
      Add(word);
    }
    if (at < bytes.size()) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, bytes.size() - at);
      Add(word);
    }
  }

  uint64_t value() const { return Fold(state_); }

 private:
  // Odd constants: the fractions of the golden ratio and of the root of 2.
  static uint64_t Fold(uint64_t word) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(word ^ 0x9E3779B97F4A7C15) *
        0x6A09E667F3BCC909;
    return static_cast<uint64_t>(product) ^
           static_cast<uint64_t>(product >> 64) ^ std::rotl(word, 32);
  }

  uint64_t state_ = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_FINGERPRINT_HASH_H_
