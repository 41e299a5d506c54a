// tests/sim/ckpt_sim.cc: runs one simulated story again, as a failed sweep
// printed it.
//
//   ckpt_sim --story=cut --seed=7 --after=12
//
// Exit: 0 the rules held, 1 one was broken, 64 usage.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/sim_cases.h"

int main(int argc, char** argv) {
  const auto sim_case = holdfast::tests::ParseCase({argv + 1, argv + argc});
  if (!sim_case.ok()) {
    std::fprintf(stderr, "%s\nusage: ckpt_sim --NAME=VALUE...\n",
                 std::string(sim_case.status().message()).c_str());
    return 64;
  }
  const holdfast::tests::SimVerdict verdict =
      holdfast::tests::RunCase(*sim_case);
  std::printf(
      "%s\n%s: found step %d, committed %d, %d operations%s\n",
      holdfast::tests::Replay(*sim_case).c_str(),
      verdict.status.ok() ? "the rules held" : "A RULE IS BROKEN",
      static_cast<int>(verdict.found), static_cast<int>(verdict.committed),
      static_cast<int>(verdict.ops), verdict.disturbed ? "" : ", undisturbed");
  if (verdict.status.ok()) return 0;
  std::printf("%s\n", verdict.status.ToString().c_str());
  return 1;
}
