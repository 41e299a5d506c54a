// tests/bench/support/row.h: one line of a benchmark's result, as JSON.
//
// Every row has `name`, `what` and where it was measured; a row of speeds has
// what the table of tests/bench/run shows: bytes, seconds, gb_per_s,
// raw_gb_per_s, ratio_to_raw with its interval [ratio_low, ratio_high], goal
// and whether it is met. Other rows say `value`, `low`, `high` and `unit`
// instead. A goal is met when the interval reaches it.

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_ROW_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_ROW_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/support/statistics.h"

namespace holdfast::bench {

// One side's seconds and the other's for the same bytes, measured one after the
// other.
struct Pair {
  double seconds = 0;
  double raw_seconds = 0;
};

class Row {
 public:
  // "save-4", "durable save on 4 ranks".
  Row(const std::string& name, const std::string& what);

  // Any key; `json()["x"] = 1`.
  nlohmann::ordered_json& json() { return json_; }

  // bytes, seconds, speeds and the ratio of the pairs; the goal is at least
  // `goal`. `raw` says what the raw side is.
  void SetPairs(double bytes, const std::vector<Pair>& pairs, double goal,
                const std::string& raw);
  // A value with an interval, whose goal is at most `goal` in that unit.
  void SetAtMost(const Interval& value, double goal, const std::string& unit);
  // Instead of figures: why there are none.
  void SetSkipped(const std::string& why);

  // One line on stdout, flushed.
  void Print() const;

 private:
  nlohmann::ordered_json json_;
};

// "ext4", "tmpfs", ...: of the file system that holds `path`.
std::string FileSystemOf(const std::string& path);

}  // namespace holdfast::bench

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_ROW_H_
