// tests/bench/support/statistics.h: what a handful of noisy figures say.
//
// Pure; any thread. Nothing is assumed of the noise but that the figures are
// independent: medians, and intervals by rank (the sign test's and Sen's).

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_STATISTICS_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_STATISTICS_H_

#include <span>
#include <vector>

namespace holdfast::bench {

// Where the true value lies with probability `coverage`.
struct Interval {
  double middle = 0;
  double low = 0;
  double high = 0;
  double coverage = 0;
};

// The middle value; between the two middle ones of an even number. 0 of none.
double Median(std::vector<double> values);

// The median with the narrowest pair of order statistics that holds it with at
// least `confidence`: of 9 values the 2nd and the 8th for 0.9 (they cover
// 0.961). With fewer than 5 values no pair covers 0.9; then the smallest and
// the largest, and `coverage` says how little they say.
Interval MedianInterval(std::vector<double> values, double confidence = 0.9);

// The probability that the median of a distribution lies between the k-th
// smallest and the k-th largest of n values, k from 1.
double CoverageOfOrderStatistics(int n, int k);

// The slope of a line through values at 0, 1, 2, ...: the median of the slopes
// between all pairs, with Sen's interval. Steps and outliers move it little.
// At least 3 values.
Interval SlopeInterval(std::span<const double> values, double confidence = 0.9);

}  // namespace holdfast::bench

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_STATISTICS_H_
