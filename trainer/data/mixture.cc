// trainer/data/mixture.cc: weights to quotas, quotas to an order.

#include "trainer/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"

namespace holdfast::trainer {
namespace {

// Largest remainders, after everyone above 0 has got one slot. Ties go to the
// lower index.
std::vector<uint32_t> Quantise(std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<uint32_t> quotas;
  std::vector<double> rest;
  uint64_t given = 0;
  for (const double weight : weights) {
    const double share = weight / total * double{kMixturePeriod};
    const double whole = std::floor(share);
    const auto quota =
        static_cast<uint32_t>(weight > 0 ? std::max(whole, 1.0) : 0.0);
    quotas.push_back(quota);
    rest.push_back(share - quota);
    given += quota;
  }
  while (given < kMixturePeriod) {
    const auto most = std::max_element(rest.begin(), rest.end());
    ++quotas[most - rest.begin()];
    *most -= 1;
    ++given;
  }
  while (given > kMixturePeriod) {
    // Small shares were rounded up to a slot; the largest pay for them.
    --*std::max_element(quotas.begin(), quotas.end());
    --given;
  }
  return quotas;
}

}  // namespace

absl::StatusOr<Mixture> Mixture::Create(std::span<const double> weights) {
  if (weights.empty() || weights.size() > kMixturePeriod) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a mixture of %d data sets; it takes 1 to %d",
                        weights.size(), kMixturePeriod));
  }
  double largest = 0;
  for (const double weight : weights) {
    if (!std::isfinite(weight) || weight < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a data set has weight %g; weights are numbers from 0 up", weight));
    }
    largest = std::max(largest, weight);
  }
  if (largest == 0) {
    return absl::InvalidArgumentError(
        "all data sets have weight 0; nothing would be read");
  }
  Mixture mixture;
  mixture.quotas_ = Quantise(weights);
  std::vector<uint32_t> placed(weights.size(), 0);
  for (uint64_t slot = 0; slot < kMixturePeriod; ++slot) {
    uint32_t best = 0;
    int64_t best_deficit = INT64_MIN;
    for (uint32_t set = 0; set < placed.size(); ++set) {
      // Of slot + 1 slots this set should have quota / period.
      const int64_t deficit =
          int64_t{mixture.quotas_[set]} * static_cast<int64_t>(slot + 1) -
          int64_t{placed[set]} * int64_t{kMixturePeriod};
      if (placed[set] < mixture.quotas_[set] && deficit > best_deficit) {
        best = set;
        best_deficit = deficit;
      }
    }
    mixture.slots_.push_back({best, placed[best]});
    ++placed[best];
  }
  return mixture;
}

}  // namespace holdfast::trainer
