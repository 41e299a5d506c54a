"""statistic.py: medians, and how far they can be trusted."""

import math
import statistics

CONFIDENCE = 0.9


def median_interval(values):
    """The median and an interval that holds the true one with CONFIDENCE, free of
    assumptions: the narrowest pair of order statistics whose binomial coverage
    reaches it; of fewer than 5 values, all of them (4: 0.88)."""
    ordered = sorted(values)
    n = len(ordered)
    low = 0
    for k in range(n // 2):
        # P(fewer than k + 1 of n fall below the median), both sides.
        outside = 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n
        if 1 - outside < CONFIDENCE:
            break
        low = k
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]


def ratios(values, others):
    """Pairs of the same round."""
    return [a / b for a, b in zip(values, others)]
