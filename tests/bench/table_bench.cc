// tests/bench/table_bench.cc: the rows of tests/bench/run as a table for
// people.
//
//   bench_table < ROWS    one JSON object a line; other lines are passed over
//
// Exit 0 when every goal that was measured is met, 1 when one is not.

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/common/text.h"

namespace holdfast::bench {
namespace {

using Json = nlohmann::json;

std::string Figure(const Json& row, const char* key, const char* format) {
  if (!row.contains(key) || !row[key].is_number()) return "-";
  char text[64];
  std::snprintf(text, sizeof text, format, row[key].get<double>());
  return text;
}

std::string Short(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// Of bench_codec, whose rows have figures of their own.
std::vector<std::string> CodecCellsOf(const Json& row) {
  return {"codec-" + row.value("variant", "") + "-" + row.value("kind", ""),
          Figure(row, "compress_gb_per_s", "%.2f"),
          "-",
          Figure(row, "ratio", "%.3f times smaller"),
          "-",
          "-",
          "-",
          "compressing on one core; decompressing " +
              Figure(row, "decompress_gb_per_s", "%.2f") + " GB/s"};
}

std::vector<std::string> CellsOf(const Json& row) {
  const auto text = [&](const char* key) {
    return row.contains(key) && row[key].is_string()
               ? row[key].get<std::string>()
               : std::string("-");
  };
  std::string result = "-";
  std::string interval = "-";
  if (row.contains("ratio_to_raw")) {
    result = Figure(row, "ratio_to_raw", "%.3f of raw");
    interval = Figure(row, "ratio_low", "%.3f") + " - " +
               Figure(row, "ratio_high", "%.3f");
  } else if (row.contains("value")) {
    result = Short(row["value"].get<double>()) + " " + text("unit");
    interval =
        Short(row.value("low", 0.0)) + " - " + Short(row.value("high", 0.0));
  }
  std::string goal = "-";
  if (row.contains("goal") && row["goal"].is_number()) {
    goal = (row.value("goal_is", "") == "at most" ? "<= " : ">= ") +
           Short(row["goal"].get<double>());
  }
  std::string met = "-";
  if (row.contains("skipped")) {
    met = "skipped: " + text("skipped");
  } else if (row.contains("met")) {
    met = row["met"].get<bool>() ? "met" : "NOT MET";
  }
  return {text("name"),
          Figure(row, "gb_per_s", "%.2f"),
          Figure(row, "raw_gb_per_s", "%.2f"),
          result,
          interval,
          goal,
          met,
          text("what")};
}

int Main() {
  std::vector<std::vector<std::string>> cells = {
      {"row", "GB/s", "raw", "result", "90 % interval", "goal", "", "what"}};
  bool all_met = true;
  for (std::string line; std::getline(std::cin, line);) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.value("bench", "") == "codec") {
      cells.push_back(CodecCellsOf(row));
    }
    if (!row.is_object() || !row.contains("name")) continue;
    cells.push_back(CellsOf(row));
    all_met = all_met && row.value("met", true);
  }
  using tools::Align;
  std::printf("%s", tools::TableText(
                        cells, {Align::kLeft, Align::kRight, Align::kRight,
                                Align::kRight, Align::kRight, Align::kRight})
                        .c_str());
  return all_met ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::bench

int main() { return holdfast::bench::Main(); }
