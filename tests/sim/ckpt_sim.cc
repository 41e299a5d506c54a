// tests/sim/ckpt_sim.cc: the simulator as a program: one story again, as a
// failed sweep printed it, or many seeds of all of them.
//
//   ckpt_sim --story=cut --seed=7 --after=12
//   ckpt_sim --seeds=1000 [--from=1]
//
// A sweep prints what it crossed, story by story, and the command that replays
// each case that broke a rule. A seed takes some tenths of a second.
//
// Exit: 0 the rules held, 1 one was broken, 64 usage.

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "tests/support/sim_cases.h"
#include "tests/support/sim_sweep.h"

namespace holdfast::tests {
namespace {

int Replayed(const SimCase& sim_case) {
  const SimVerdict verdict = RunCase(sim_case);
  absl::PrintF("%s\n%s: found step %d, committed %d, %d operations%s\n",
               Replay(sim_case),
               verdict.status.ok() ? "the rules held" : "A RULE IS BROKEN",
               verdict.found, verdict.committed, verdict.ops,
               verdict.disturbed ? "" : ", undisturbed");
  if (verdict.status.ok()) return 0;
  absl::PrintF("%s\n", verdict.status.ToString());
  return 1;
}

constexpr uint64_t kSeedsPerLine = 50;

int Swept(uint64_t from, uint64_t seeds) {
  std::map<std::string, SweepFigures> figures;
  SweepFigures all;
  for (uint64_t seed = from; seed < from + seeds; ++seed) {
    const auto broken = [](const SimCase& c, const absl::Status& status) {
      absl::PrintF("A RULE IS BROKEN: %s\n  replay: %s\n", status.ToString(),
                   Replay(c));
      std::fflush(stdout);
    };
    for (const auto& [story, added] : SweepSeed(seed, broken)) {
      figures[story] += added;
      all += added;
    }
    if ((seed - from + 1) % kSeedsPerLine == 0) {
      std::fprintf(stderr, "%s",
                   absl::StrFormat("seeds %d to %d: %d cases, %d broken\n",
                                   from, seed, all.cases, all.broken)
                       .c_str());
    }
  }
  figures["in all"] = all;
  absl::PrintF("%-10s %10s %10s %10s %10s %8s\n", "story", "cases", "disturbed",
               "old found", "new found", "broken");
  bool crossed = true;
  for (const auto& [story, f] : figures) {
    absl::PrintF("%-10s %10d %10d %10d %10d %8d\n", story, f.cases, f.disturbed,
                 f.old_ones, f.new_ones, f.broken);
    crossed &= f.new_ones > 0 && f.disturbed > 0;
  }
  if (!crossed) absl::PrintF("a story crossed nothing: too few seeds\n");
  return all.broken == 0 && crossed ? 0 : 1;
}

// "--NAME=N" or "--NAME N" out of `arguments`; false when it is malformed.
bool TakeNumber(std::vector<std::string>* arguments, const std::string& name,
                uint64_t* number) {
  for (size_t i = 0; i < arguments->size(); ++i) {
    std::string value;
    size_t words = 1;
    if ((*arguments)[i] == name && i + 1 < arguments->size()) {
      value = (*arguments)[i + 1];
      words = 2;
    } else if ((*arguments)[i].starts_with(name + "=")) {
      value = (*arguments)[i].substr(name.size() + 1);
    } else {
      continue;
    }
    const auto at = arguments->begin() + static_cast<ptrdiff_t>(i);
    arguments->erase(at, at + static_cast<ptrdiff_t>(words));
    return absl::SimpleAtoi(value, number) && *number > 0;
  }
  return true;
}

int Main(std::vector<std::string> arguments) {
  const char* const usage =
      "usage: ckpt_sim --NAME=VALUE...\n"
      "       ckpt_sim --seeds=N [--from=SEED]\n";
  uint64_t seeds = 0;
  uint64_t from = 1;
  if (!TakeNumber(&arguments, "--seeds", &seeds) ||
      !TakeNumber(&arguments, "--from", &from)) {
    std::fprintf(stderr, "%s", usage);
    return 64;
  }
  if (seeds > 0 && arguments.empty()) return Swept(from, seeds);
  const auto sim_case = ParseCase(arguments);
  if (!sim_case.ok() || seeds > 0) {
    std::fprintf(stderr, "%s\n%s",
                 std::string(sim_case.status().message()).c_str(), usage);
    return 64;
  }
  return Replayed(*sim_case);
}

}  // namespace
}  // namespace holdfast::tests

int main(int argc, char** argv) {
  return holdfast::tests::Main({argv + 1, argv + argc});
}
