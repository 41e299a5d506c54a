// The sweep that `ckpt_sim --seeds` makes crosses every story, both ways. How
// many seeds are safe is that program's to say (tests/CMakeLists.txt starts it
// over hundreds).

#include "tests/support/sim_sweep.h"

#include "gtest/gtest.h"

namespace holdfast::tests {
namespace {

TEST(SimSweepTest, AFewSeedsCrossEveryStoryAndBreakNoRule) {
  std::map<std::string, SweepFigures> figures;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (const auto& [story, added] :
         SweepSeed(seed, [](const SimCase&c, const absl::Status&status) {
           ADD_FAILURE() << "replay: " << Replay(c) << "\n" << status;
         })) {
      figures[story] += added;
    }
  }
  EXPECT_EQ(figures.size(), 6u);
  for (const auto& [story, f] : figures) {
    EXPECT_GT(f.disturbed, 0) << story;
    EXPECT_GT(f.new_ones, 0) << story;
    EXPECT_EQ(f.cases, f.old_ones + f.new_ones + f.broken) << story;
  }
  EXPECT_GT(figures["cut"].old_ones, 0);
  EXPECT_GT(figures["recovery"].old_ones, 0);
  EXPECT_GT(figures["kill"].old_ones, 0);
  EXPECT_GT(figures["takeover"].old_ones, 0);
}

}  // namespace
}  // namespace holdfast::tests
