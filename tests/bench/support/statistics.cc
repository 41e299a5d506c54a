// tests/bench/support/statistics.cc: see statistics.h.

#include "tests/bench/support/statistics.h"

#include <algorithm>
#include <cmath>

#include "ckpt/base/check.h"

namespace holdfast::bench {
namespace {

// The z of P(-z <= N(0, 1) <= z) = confidence, by bisection of erf.
double NormalQuantile(double confidence) {
  double low = 0;
  double high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erf(middle / std::sqrt(2.0)) < confidence ? low : high) = middle;
  }
  return low;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

double CoverageOfOrderStatistics(int n, int k) {
  HF_CHECK(k >= 1 && 2 * k <= n + 1, "the %d-th of %d values", k, n);
  // Both tails of the binomial distribution: fewer than k values on one side.
  double tail = 0;
  double term = std::pow(0.5, n);
  for (int i = 0; i < k; ++i) {
    tail += term;
    term *= static_cast<double>(n - i) / (i + 1);
  }
  return 1 - 2 * tail;
}

Interval MedianInterval(std::vector<double> values, double confidence) {
  HF_CHECK(!values.empty(), "an interval of no values");
  const int n = static_cast<int>(values.size());
  std::sort(values.begin(), values.end());
  int k = 1;
  while (2 * (k + 1) <= n &&
         CoverageOfOrderStatistics(n, k + 1) >= confidence) {
    ++k;
  }
  return {Median(values), values[k - 1], values[n - k],
          n == 1 ? 0 : CoverageOfOrderStatistics(n, k)};
}

Interval SlopeInterval(std::span<const double> values, double confidence) {
  HF_CHECK(values.size() >= 3, "a slope through %d values", values.size());
  std::vector<double> slopes;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i + 1; j < values.size(); ++j) {
      slopes.push_back((values[j] - values[i]) / static_cast<double>(j - i));
    }
  }
  std::sort(slopes.begin(), slopes.end());
  // Kendall's variance of the number of concordant less discordant pairs.
  const double n = static_cast<double>(values.size());
  const double reach =
      NormalQuantile(confidence) * std::sqrt(n * (n - 1) * (2 * n + 5) / 18);
  const double pairs = static_cast<double>(slopes.size());
  const auto at = [&](double rank) {
    return slopes[static_cast<size_t>(std::clamp(rank, 0.0, pairs - 1))];
  };
  return {Median(slopes), at(std::floor((pairs - reach) / 2)),
          at(std::ceil((pairs + reach) / 2)), confidence};
}

}  // namespace holdfast::bench
