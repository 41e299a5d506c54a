// What else can happen to a save: a rank dies at each of its storage
// operations, an operation fails, once or from then on, messages come minutes
// late, another job takes the run while a save is under way. Training goes on
// where it can, and a new job finds the newest checkpoint, bit for bit.

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"
#include "tests/support/sim_world.h"

namespace holdfast::tests {
namespace {

TEST(SaveFaultTest, ARankThatDiesAtAnyOperationCostsThatSaveOnly) {
  for (const int rank : {0, 1, 2}) {
    SimTally seen{.new_step_max = 200};
    for (int seed = 1; seed <= SeedsOfSweep(6); ++seed) {
      SimCase c{
          .story = "kill", .seed = static_cast<uint64_t>(seed), .rank = rank};
      c.after = int64_t{1} << 40;
      const int64_t ops = RunCase(c).ops;
      // A rank that shares another's file opens, writes and syncs it.
      ASSERT_GT(ops, 8);
      for (c.after = 0; c.after <= ops; ++c.after) CheckCase(c, &seen);
    }
    EXPECT_TRUE(seen.old_one) << "rank " << rank;
    EXPECT_TRUE(seen.new_one) << "rank " << rank;
  }
}

// Which faults of which operations; each at its first to its last occurrence in
// a save.
class OperationFaultTest : public testing::TestWithParam<SimOp> {};

TEST_P(OperationFaultTest, CostsAtMostThatSaveAndTrainingGoesOn) {
  SimTally seen{.new_step_max = 200};
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable}) {
    for (const bool from_then_on : {false, true}) {
      for (const int rank : {0, 2}) {
        for (int seed = 1; seed <= SeedsOfSweep(2); ++seed) {
          SimCase c{.story = "fault",
                    .seed = static_cast<uint64_t>(seed),
                    .rank = rank,
                    .op = GetParam(),
                    .from_then_on = from_then_on,
                    .code = code};
          for (c.after = 0; c.after < 12; ++c.after) {
            const int disturbed = seen.disturbed;
            CheckCase(c, &seen);
            if (seen.disturbed == disturbed) break;  // beyond the last
          }
        }
      }
    }
  }
  EXPECT_GT(seen.disturbed, 0) << "the fault never met a save";
}

INSTANTIATE_TEST_SUITE_P(All, OperationFaultTest,
                         testing::Values(SimOp::kMakeDir, SimOp::kCreate,
                                         SimOp::kOpen, SimOp::kWrite,
                                         SimOp::kSync, SimOp::kSyncDir,
                                         SimOp::kLink, SimOp::kList),
                         [](const testing::TestParamInfo<SimOp>& info) {
                           return std::string(Name(info.param));
                         });

TEST(SaveFaultTest, AnAttemptWhoseDirectoriesCouldNotAllBeMadeIsSwept) {
  SimWorldOptions options;
  options.seed = 3;
  options.files_per_dir = 1;
  SimWorld world(options);
  SimJob& job = world.StartJob(3);
  ASSERT_TRUE(world.Claim(job).ok());
  ASSERT_TRUE(world.Save(job, 100).ok());
  SimFault fault;
  fault.op = SimOp::kMakeDir;
  fault.nth = 3;  // the attempt's own, and one of three inside, are there
  fault.status = absl::UnavailableError("injected");
  world.disk().Inject(fault);
  EXPECT_FALSE(world.Save(job, 200).ok());
  const auto names_of_200 = [&] {
    int count = 0;
    for (const std::string& name : world.disk().Names()) {
      count += name.find("step-000000200") != std::string::npos;
    }
    return count;
  };
  EXPECT_GT(names_of_200(), 0);
  ASSERT_TRUE(world.Save(job, 300).ok());
  world.FinishRetention(job);
  EXPECT_EQ(names_of_200(), 0);
}

TEST(SaveFaultTest, MessagesThatAreMinutesLateCommitNothingWrong) {
  SimTally seen{.new_step_max = 200};
  for (int seed = 1; seed <= SeedsOfSweep(60); ++seed) {
    CheckCase({.story = "late", .seed = static_cast<uint64_t>(seed)}, &seen);
  }
  EXPECT_GT(seen.disturbed, 0);
}

TEST(SaveFaultTest, AJobThatLostTheRunChangesNothingAnyMore) {
  SimTally seen{.new_step_max = 200};
  for (int seed = 1; seed <= SeedsOfSweep(6); ++seed) {
    SimCase c{.story = "takeover", .seed = static_cast<uint64_t>(seed)};
    for (c.after = 0; c.after <= 26; ++c.after) CheckCase(c, &seen);
  }
  EXPECT_GT(seen.disturbed, 0);
  EXPECT_TRUE(seen.old_one);
  EXPECT_TRUE(seen.new_one);
}

}  // namespace
}  // namespace holdfast::tests
