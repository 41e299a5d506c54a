// trainer/links/link_report.h: what was measured of a job's links, and which of
// them are slow. Pure.
//
// A link is slow when it misses a figure that was asked for; without one, when
// it is below kOutlierShare of the median of its kind. A kind is an axis (tp,
// pp, dp) and a place: both ends on one host ("inside") or not ("across").

#ifndef HOLDFAST_TRAINER_LINKS_LINK_REPORT_H_
#define HOLDFAST_TRAINER_LINKS_LINK_REPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace holdfast::trainer {

enum class LinkAxis : int32_t { kTp, kPp, kDp };
// "tp", "pp", "dp"
const char* ToString(LinkAxis axis);

// Two ranks of the world that exchanged messages; a < b.
struct PairRecord {
  LinkAxis axis = LinkAxis::kTp;
  int32_t a = 0;
  int32_t b = 0;
  double latency_us = 0;   // Of one small message, one way; the median.
  double bytes_per_s = 0;  // Of one large message, one way; the median.
};

// An all-reduce over the group of `axis` whose lowest rank is `first`.
struct GroupRecord {
  LinkAxis axis = LinkAxis::kTp;
  int32_t first = 0;
  int32_t members = 0;
  double latency_us = 0;  // Of a sum of few bytes; the median.
  // Bytes that each member sends and receives at least, by the time of the
  // median: bytes * 2 (members - 1) / members, what others call bus bandwidth.
  double bus_bytes_per_s = 0;
};

// 0: nothing is asked.
struct LinkExpectation {
  double bytes_per_s = 0;
  double latency_us = 0;

  bool any() const { return bytes_per_s > 0 || latency_us > 0; }
};

struct LinkExpectations {
  LinkExpectation inside;
  LinkExpectation across;
};

// Pairs (and groups) of one axis at one place.
struct LinkKind {
  LinkAxis axis = LinkAxis::kTp;
  bool across = false;
  int64_t pairs = 0;
  double pair_bytes_per_s_median = 0;
  double pair_bytes_per_s_min = 0;
  double pair_latency_us_median = 0;
  double pair_latency_us_max = 0;
  int64_t groups = 0;  // Across: with members on more than one host.
  double group_bus_bytes_per_s_median = 0;
  double group_bus_bytes_per_s_min = 0;
  double group_latency_us_median = 0;
};

struct SlowPair {
  PairRecord pair;
  bool across = false;
  // Misses a figure that was asked for; else it stands out from its kind.
  bool misses_expectation = false;
  std::string why;  // "1.20 GB/s, expected 10.0 GB/s"
};

inline constexpr int kNoSuspect = -1;

struct LinkReport {
  std::vector<LinkKind> kinds;  // By axis, inside first; empty ones left out.
  std::vector<SlowPair> slow;   // Worst first.
  // The rank that is in more slow pairs than any other, and in two at least.
  int suspect_rank = kNoSuspect;
  int64_t suspect_pairs = 0;

  bool meets_expectations() const {
    for (const SlowPair& pair : slow) {
      if (pair.misses_expectation) return false;
    }
    return true;
  }
};

inline constexpr double kOutlierShare = 0.5;

// `host_of` a rank of the world; `ranks_of` a group, given its record.
LinkReport JudgeLinks(
    const std::vector<PairRecord>& pairs,
    const std::vector<GroupRecord>& groups, const LinkExpectations& expected,
    const std::function<std::string(int rank)>& host_of,
    const std::function<std::vector<int>(const GroupRecord&)>& ranks_of);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_LINKS_LINK_REPORT_H_
