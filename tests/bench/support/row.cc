// tests/bench/support/row.cc: see row.h.

#include "tests/bench/support/row.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_format.h"
#include "ckpt/storage/file_system.h"

namespace holdfast::bench {
namespace {

// "2 x AMD EPYC 9R45, Linux 6.18".
std::string Machine() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) model = line.substr(colon + 2);
    break;
  }
  utsname system{};
  ::uname(&system);
  return absl::StrFormat("%d x %s, %s %s", sysconf(_SC_NPROCESSORS_ONLN), model,
                         system.sysname, system.release);
}

std::string Commit() {
  const char* const commit = std::getenv("HOLDFAST_COMMIT");
  return commit == nullptr ? "unknown" : commit;
}

}  // namespace

Row::Row(const std::string& name, const std::string& what) {
  json_["name"] = name;
  json_["what"] = what;
}

void Row::SetPairs(double bytes, const std::vector<Pair>& pairs, double goal,
                   const std::string& raw) {
  std::vector<double> ours, theirs, ratios;
  for (const Pair& pair : pairs) {
    ours.push_back(pair.seconds);
    theirs.push_back(pair.raw_seconds);
    ratios.push_back(pair.raw_seconds / pair.seconds);
  }
  const Interval ratio = MedianInterval(ratios);
  json_["bytes"] = static_cast<uint64_t>(bytes);
  json_["seconds"] = Median(ours);
  json_["gb_per_s"] = bytes / Median(ours) / 1e9;
  json_["raw"] = raw;
  json_["raw_gb_per_s"] = bytes / Median(theirs) / 1e9;
  json_["ratio_to_raw"] = ratio.middle;
  json_["ratio_low"] = ratio.low;
  json_["ratio_high"] = ratio.high;
  json_["coverage"] = ratio.coverage;
  json_["pairs"] = pairs.size();
  json_["goal"] = goal;
  json_["goal_is"] = "at least";
  json_["met"] = ratio.high >= goal;
}

void Row::SetAtMost(const Interval& value, double goal,
                    const std::string& unit) {
  json_["value"] = value.middle;
  json_["low"] = value.low;
  json_["high"] = value.high;
  json_["coverage"] = value.coverage;
  json_["unit"] = unit;
  json_["goal"] = goal;
  json_["goal_is"] = "at most";
  json_["met"] = value.low <= goal;
}

void Row::SetSkipped(const std::string& why) { json_["skipped"] = why; }

void Row::Print() const {
  nlohmann::ordered_json line = json_;
  line["machine"] = Machine();
  line["commit"] = Commit();
  std::printf("%s\n",
              line.dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace)
                  .c_str());
  std::fflush(stdout);
}

std::string FileSystemOf(const std::string& path) {
  const auto info = ckpt::LookAtFileSystem(path);
  return info.ok() ? info->type : "unknown";
}

}  // namespace holdfast::bench
