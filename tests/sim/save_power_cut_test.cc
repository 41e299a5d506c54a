// Cuts the power after the first storage operation of a save, then after the
// second, and so on through the last of its retention. Each cut is tried under
// several seeds: other orders of the ranks' turns, other survivors among the
// bytes and names in flight. The machine restarts, and a new job must find one
// whole checkpoint, the old one or the new one, and never an older one than was
// reported as committed.

#include <cstdint>

#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"

namespace holdfast::tests {
namespace {

// Operations of the undisturbed case, under its own seed.
int64_t OpsOf(SimCase c) {
  c.after = int64_t{1} << 40;
  const SimVerdict verdict = RunCase(c);
  EXPECT_TRUE(verdict.status.ok()) << Replay(c) << "\n" << verdict.status;
  return verdict.ops;
}

TEST(SavePowerCutTest, EveryCutLeavesOneWholeCheckpoint) {
  SimTally seen;
  for (int seed = 1; seed <= SeedsOfSweep(12); ++seed) {
    SimCase c{.story = "cut", .seed = static_cast<uint64_t>(seed)};
    const int64_t ops = OpsOf(c);
    for (c.after = 0; c.after <= ops; ++c.after) CheckCase(c, &seen, 100);
  }
  // Unless both outcomes occurred, the sweep never crossed the commit point.
  EXPECT_TRUE(seen.old_one);
  EXPECT_TRUE(seen.new_one);
  RecordProperty("cases", seen.cases);
}

TEST(SavePowerCutTest, CutsDuringTheRestartLoseNothingEither) {
  SimTally seen;
  for (int seed = 1; seed <= SeedsOfSweep(2); ++seed) {
    SimCase c{.story = "recovery", .seed = static_cast<uint64_t>(seed)};
    SimCase first{.story = "cut", .seed = c.seed};
    const int64_t first_ops = OpsOf(first);
    for (c.first_cut = seed % 9; c.first_cut <= first_ops; c.first_cut += 9) {
      const int64_t ops = OpsOf(c);
      for (c.after = seed % 3; c.after <= ops; c.after += 3) {
        CheckCase(c, &seen, 200);
      }
    }
  }
  EXPECT_TRUE(seen.new_one);
  RecordProperty("cases", seen.cases);
}

TEST(SavePowerCutTest, KeepingMoreThanOneIsAsSafe) {
  SimTally seen;
  for (int seed = 1; seed <= SeedsOfSweep(2); ++seed) {
    SimCase c{.story = "cut",
              .seed = static_cast<uint64_t>(seed),
              .ranks = 4,
              .keep_last = 2};
    const int64_t ops = OpsOf(c);
    for (c.after = 0; c.after <= ops; ++c.after) CheckCase(c, &seen, 100);
  }
  EXPECT_TRUE(seen.old_one);
  EXPECT_TRUE(seen.new_one);
}

}  // namespace
}  // namespace holdfast::tests
