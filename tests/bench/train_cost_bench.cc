// tests/bench/train_cost_bench.cc: what saving costs a training run, from the
// run's own records.
//
// In a run with a save every N steps, the save of step kN is written beside the
// steps kN+1 and kN+2 (a save that takes longer is refused: the figure would
// miss its cost). Each cycle compares these two with the other N-2 steps of the
// same cycle, so that whatever drifts on the machine drifts for both:
//
//   cost = (t1 + t2 - 2 median(t3 ... tN)) / (t1 + ... + tN)
//        + processor seconds of the checkpoint thread / (t1 + ... + tN)
//
// where t is the wall time from the end of one step to the end of the next. One
// row: the median over the cycles, in per cent.
//
//   bench_train_cost --run DIR [--every 10]

#include <getopt.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "tests/bench/support/row.h"
#include "tests/bench/support/statistics.h"

namespace holdfast::bench {
namespace {

constexpr double kGoalPercent = 2;

std::vector<nlohmann::json> LinesOf(const std::string& path) {
  std::ifstream file(path);
  HF_CHECK(file.is_open(), "cannot read %s", path);
  std::vector<nlohmann::json> lines;
  for (std::string text; std::getline(file, text);) {
    lines.push_back(nlohmann::json::parse(text));
  }
  return lines;
}

int Measure(const std::string& run, int64_t every) {
  std::map<int64_t, double> ended;  // by step, seconds
  double tokens = 0;
  for (const auto& line : LinesOf(run + "/metrics.jsonl")) {
    ended[line.at("step")] = line.at("time");
    tokens = line.at("tokens");
  }
  struct Save {
    double cpu = 0;
    double seconds = 0;
    double raw_share = 0;
    double bytes = 0;
  };
  std::map<int64_t, Save> saves;
  for (const auto& line : LinesOf(run + "/journal.jsonl")) {
    if (line.at("event") != "save") continue;
    HF_CHECK(line.at("outcome") == "committed", "a save was %s",
             line.at("outcome").get<std::string>());
    saves[line.at("step")] = {line.at("thread_cpu_seconds"), line.at("seconds"),
                              line.at("raw_share"), line.at("bytes_total")};
  }

  std::vector<double> percent, slower, cpu, save_seconds, step_seconds, shares;
  for (const auto& [step, save] : saves) {
    if (step % every != 0 || !ended.contains(step + every)) continue;
    std::vector<double> t;
    for (int64_t i = step + 1; i <= step + every; ++i) {
      t.push_back(ended.at(i) - ended.at(i - 1));
    }
    HF_CHECK(
        save.seconds < t[0] + t[1],
        "the save of step %d took %.2f s, two steps %.2f s: it runs beside "
        "others too",
        step, save.seconds, t[0] + t[1]);
    const double whole = ended.at(step + every) - ended.at(step);
    const double plain = Median(std::vector<double>(t.begin() + 2, t.end()));
    slower.push_back(100 * (t[0] + t[1] - 2 * plain) / whole);
    cpu.push_back(100 * save.cpu / whole);
    percent.push_back(slower.back() + cpu.back());
    save_seconds.push_back(save.seconds);
    step_seconds.push_back(plain);
    shares.push_back(save.raw_share);
  }
  HF_CHECK(!percent.empty(), "%s has no whole cycle of %d steps", run, every);

  Row row("train-cost",
          absl::StrFormat("gpt-124m, one rank, a save every %d steps", every));
  row.json()["bytes"] = saves.rbegin()->second.bytes;
  row.json()["seconds"] = Median(save_seconds);
  row.json()["gb_per_s"] =
      saves.rbegin()->second.bytes / Median(save_seconds) / 1e9;
  row.SetAtMost(MedianInterval(percent), kGoalPercent, "% of wall time");
  row.json()["aim"] = 1;
  row.json()["slower_percent"] = Median(slower);
  row.json()["thread_cpu_percent"] = Median(cpu);
  row.json()["cycles"] = percent.size();
  row.json()["each_percent"] = percent;
  row.json()["step_seconds"] = Median(step_seconds);
  row.json()["tokens_per_s"] = tokens / Median(step_seconds);
  row.json()["raw_share_in_run"] = Median(shares);
  row.json()["file_system"] = FileSystemOf(run);
  row.Print();
  return 0;
}

int Main(int argc, char** argv) {
  std::string run;
  int64_t every = 10;
  const option options[] = {{"run", required_argument, nullptr, 'r'},
                            {"every", required_argument, nullptr, 'e'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'r') run = optarg;
    if (c == 'e') good = absl::SimpleAtoi(optarg, &every);
    if (!good) return 64;
  }
  if (run.empty() || every < 4) return 64;
  return Measure(run, every);
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
