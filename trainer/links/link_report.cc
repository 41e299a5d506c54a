// trainer/links/link_report.cc: medians by kind, and who falls behind them.

#include "trainer/links/link_report.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"

namespace holdfast::trainer {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using KindKey = std::pair<LinkAxis, bool>;  // Axis, across.

struct Samples {
  std::vector<double> rates, latencies, group_rates, group_latencies;
};

bool Across(const std::vector<int>& ranks,
            const std::function<std::string(int)>& host_of) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return host_of(rank) != host_of(ranks.front());
  });
}

// How far below what it should be, 1 being as asked; and the words.
std::pair<double, SlowPair> JudgePair(const PairRecord& pair, bool across,
                                      const LinkExpectation& expected,
                                      const LinkKind& kind) {
  SlowPair slow{pair, across, false, ""};
  double share = 1;
  const auto fails = [&](double found_share, bool asked, std::string words) {
    if (found_share >= share) return;
    share = found_share;
    slow.misses_expectation = asked;
    slow.why = std::move(words);
  };
  const double rate = pair.bytes_per_s;
  if (expected.bytes_per_s > 0) {
    fails(rate / expected.bytes_per_s, true,
          absl::StrFormat("%.3g GB/s, expected %.3g GB/s", rate / 1e9,
                          expected.bytes_per_s / 1e9));
  } else if (rate < kOutlierShare * kind.pair_bytes_per_s_median) {
    fails(rate / kind.pair_bytes_per_s_median, false,
          absl::StrFormat("%.3g GB/s, the median is %.3g GB/s", rate / 1e9,
                          kind.pair_bytes_per_s_median / 1e9));
  }
  const double latency = pair.latency_us;
  if (expected.latency_us > 0) {
    fails(expected.latency_us / latency, true,
          absl::StrFormat("%.3g us, expected %.3g us", latency,
                          expected.latency_us));
  } else if (latency * kOutlierShare > kind.pair_latency_us_median) {
    fails(kind.pair_latency_us_median / latency, false,
          absl::StrFormat("%.3g us, the median is %.3g us", latency,
                          kind.pair_latency_us_median));
  }
  return {share, slow};
}

}  // namespace

const char* ToString(LinkAxis axis) {
  switch (axis) {
    case LinkAxis::kTp:
      return "tp";
    case LinkAxis::kPp:
      return "pp";
    case LinkAxis::kDp:
      return "dp";
  }
  return "?";
}

LinkReport JudgeLinks(
    const std::vector<PairRecord>& pairs,
    const std::vector<GroupRecord>& groups, const LinkExpectations& expected,
    const std::function<std::string(int rank)>& host_of,
    const std::function<std::vector<int>(const GroupRecord&)>& ranks_of) {
  std::map<KindKey, Samples> samples;
  for (const PairRecord& pair : pairs) {
    Samples& of = samples[{pair.axis, host_of(pair.a) != host_of(pair.b)}];
    of.rates.push_back(pair.bytes_per_s);
    of.latencies.push_back(pair.latency_us);
  }
  for (const GroupRecord& group : groups) {
    Samples& of = samples[{group.axis, Across(ranks_of(group), host_of)}];
    of.group_rates.push_back(group.bus_bytes_per_s);
    of.group_latencies.push_back(group.latency_us);
  }

  LinkReport report;
  std::map<KindKey, LinkKind> kinds;
  for (const auto& [key, of] : samples) {
    LinkKind kind;
    kind.axis = key.first;
    kind.across = key.second;
    kind.pairs = static_cast<int64_t>(of.rates.size());
    kind.groups = static_cast<int64_t>(of.group_rates.size());
    kind.pair_bytes_per_s_median = Median(of.rates);
    kind.pair_latency_us_median = Median(of.latencies);
    kind.group_bus_bytes_per_s_median = Median(of.group_rates);
    kind.group_latency_us_median = Median(of.group_latencies);
    if (!of.rates.empty()) {
      kind.pair_bytes_per_s_min =
          *std::min_element(of.rates.begin(), of.rates.end());
      kind.pair_latency_us_max =
          *std::max_element(of.latencies.begin(), of.latencies.end());
    }
    if (!of.group_rates.empty()) {
      kind.group_bus_bytes_per_s_min =
          *std::min_element(of.group_rates.begin(), of.group_rates.end());
    }
    kinds[key] = kind;
    report.kinds.push_back(kind);
  }

  std::vector<std::pair<double, SlowPair>> slow;
  std::map<int, int64_t> blamed;
  for (const PairRecord& pair : pairs) {
    const bool across = host_of(pair.a) != host_of(pair.b);
    auto judged =
        JudgePair(pair, across, across ? expected.across : expected.inside,
                  kinds[{pair.axis, across}]);
    if (judged.first >= 1) continue;
    ++blamed[pair.a];
    ++blamed[pair.b];
    slow.push_back(std::move(judged));
  }
  std::sort(slow.begin(), slow.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.pair.a, a.second.pair.b) <
           std::tie(b.first, b.second.pair.a, b.second.pair.b);
  });
  for (auto& [share, pair] : slow) report.slow.push_back(std::move(pair));
  // One that shares its place with another explains nothing.
  for (const auto& [rank, count] : blamed) {
    if (count > report.suspect_pairs) {
      report.suspect_rank = rank;
      report.suspect_pairs = count;
    } else if (count == report.suspect_pairs) {
      report.suspect_rank = kNoSuspect;
    }
  }
  if (report.suspect_pairs < 2) report.suspect_rank = kNoSuspect;
  if (report.suspect_rank == kNoSuspect) report.suspect_pairs = 0;
  return report;
}

}  // namespace holdfast::trainer
