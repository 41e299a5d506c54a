// Each test breaks one promise on purpose and asks the sweeps to notice. A
// sweep that stays green here would stay green over a real mistake of that
// kind.

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"

namespace holdfast::tests {
namespace {

// Tries `c` after every number of operations below `ops_max` under the seeds
// until a rule breaks; the message of the first one, "" when none does.
std::string FirstBroken(SimCase c, int64_t ops_max, int seeds = 12) {
  for (int seed = 1; seed <= seeds; ++seed) {
    c.seed = seed;
    for (c.after = 0; c.after < ops_max; ++c.after) {
      const SimVerdict verdict = RunCase(c);
      if (!verdict.status.ok()) {
        return Replay(c) + ": " + verdict.status.ToString();
      }
    }
  }
  return "";
}

constexpr int64_t kOpsOfASave = 64;
constexpr int64_t kOpsOfARank = 30;

TEST(SaveCanaryTest, ADiskThatIgnoresSyncIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kDiskIgnoresSync}, kOpsOfASave), "");
}

TEST(SaveCanaryTest, ADiskThatIgnoresDirectorySyncIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kDiskIgnoresDirSync}, kOpsOfASave),
            "");
}

TEST(SaveCanaryTest, AFileThatWasNotSyncedIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kNoFileSync}, kOpsOfASave), "");
}

TEST(SaveCanaryTest, APartThatIsLeftToTheLeadersSyncIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kNoPartSync}, kOpsOfASave), "");
}

TEST(SaveCanaryTest, ADirectoryThatWasNotSyncedIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kNoDirSync}, kOpsOfASave), "");
}

TEST(SaveCanaryTest, AVoteBeforeTheSyncIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kVoteBeforeSync}, kOpsOfASave), "");
}

TEST(SaveCanaryTest, RetentionBeforeTheCommitIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kRetireBeforeCommit}, kOpsOfASave),
            "");
}

TEST(SaveCanaryTest, ARankThatTouchesItsFileAfterAYesIsNoticed) {
  EXPECT_NE(FirstBroken(
                {.story = "kill", .rank = 0, .canary = Canary::kTouchAfterYes},
                kOpsOfARank),
            "");
}

TEST(SaveCanaryTest, ADirectoryThatIsUsedTwiceIsNoticed) {
  EXPECT_NE(
      FirstBroken({.story = "fault", .canary = Canary::kReuseDirectory}, 4),
      "");
}

TEST(SaveCanaryTest, AnIgnoredSealIsNoticed) {
  EXPECT_NE(
      FirstBroken({.story = "takeover", .canary = Canary::kIgnoreSeal}, 26),
      "");
}

TEST(SaveCanaryTest, AUnitReleasedBeforeItsCompletionIsNoticed) {
  EXPECT_NE(FirstBroken({.canary = Canary::kReleaseBeforeComplete}, 1), "");
}

}  // namespace
}  // namespace holdfast::tests
