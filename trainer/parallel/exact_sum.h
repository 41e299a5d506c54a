// trainer/parallel/exact_sum.h: a sum of doubles that has no order.
//
// The sum is kept as one fixed-point number, wide enough for every finite
// double and 2^30 additions, in 64-bit limbs that hold 32 bits each and room
// for carries. Adding is exact, so any order, any split over ranks and any
// number of ranks give the same limbs, which an integer all-reduce adds up. The
// one rounding, to nearest even, is in Round().
//
// Infinities and NaNs are counted and come out as in any addition: infinities
// of both signs, or a NaN, make the sum a NaN.
//
// Cost: about 10 ns a value. Memory: 560 bytes. Thread: any one.

#ifndef HOLDFAST_TRAINER_PARALLEL_EXACT_SUM_H_
#define HOLDFAST_TRAINER_PARALLEL_EXACT_SUM_H_

#include <array>
#include <cstdint>
#include <span>

namespace holdfast::trainer {

class ExactSum {
 public:
  // Bit 0 of limb 0 weighs 2^-1074, the smallest double; the largest is below
  // 2^1024. 2,098 bits, and 30 for the additions, in limbs of 32.
  static constexpr int kLimbs = 67;
  // The limbs, and the counts of +inf, -inf and NaN.
  static constexpr int kWords = kLimbs + 3;

  void Add(double value);
  void Add(const ExactSum& other);

  // For an integer all-reduce, in place: every rank calls Normalize, sums the
  // words, and has the sum of all. At most 2^30 ranks.
  std::span<int64_t> words() { return words_; }
  // Carries are moved up, so that each limb but the last is in [0, 2^32).
  void Normalize();

  // The double nearest to the exact sum, ties to even; infinite when beyond the
  // largest double. An empty sum is +0.
  double Round() const;

 private:
  static constexpr int kPositiveInfinities = kLimbs;
  static constexpr int kNegativeInfinities = kLimbs + 1;
  static constexpr int kNans = kLimbs + 2;
  // Each addition changes a limb by less than 2^32.
  static constexpr int kAdditionsMax = 1 << 30;

  std::array<int64_t, kWords> words_{};
  int additions_ = 0;  // Since the last Normalize.
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_EXACT_SUM_H_
