// trainer/data/mixture.h: which data set a sample comes from.
//
// Weights become whole quotas of a period of 1,000 samples, and the period is
// one fixed list of data sets, repeated for ever. So the data set of sample i,
// and how many samples of that set came before, need no memory of the past:
//
//   weights 0.5, 0.3, 0.2 -> quotas 500, 300, 200 -> 0 1 2 0 1 0 2 0 1 0 ...
//   sample i: period i / 1000, slot i % 1000
//
// Each period has every quota exactly, so shares are exact to 0.1 %. Within it
// the next slot goes to the data set furthest behind its share, which keeps
// every prefix close to the weights. Pure; PickAt costs two look-ups.

#ifndef HOLDFAST_TRAINER_DATA_MIXTURE_H_
#define HOLDFAST_TRAINER_DATA_MIXTURE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

inline constexpr uint64_t kMixturePeriod = 1000;

// The `occurrence`-th sample (from 0) of data set `set`.
struct MixturePick {
  uint32_t set = 0;
  uint64_t occurrence = 0;

  friend bool operator==(const MixturePick&, const MixturePick&) = default;
};

class Mixture {
 public:
  // One weight a data set, none negative; need not sum to 1. A data set whose
  // weight is above 0 gets at least one slot, one of weight 0 gets none.
  //
  // kInvalidArgument: no weights, none above 0, one that is negative or no
  //     number, or more than 1,000 data sets.
  static absl::StatusOr<Mixture> Create(std::span<const double> weights);

  MixturePick PickAt(uint64_t index) const {
    const Slot& slot = slots_[index % kMixturePeriod];
    return {slot.set,
            index / kMixturePeriod * quotas_[slot.set] + slot.earlier};
  }

  // Slots of each data set in a period.
  std::span<const uint32_t> quotas() const { return quotas_; }

 private:
  struct Slot {
    uint32_t set;
    uint32_t earlier;  // Slots of the same data set before this one.
  };

  std::vector<uint32_t> quotas_;
  std::vector<Slot> slots_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_MIXTURE_H_
