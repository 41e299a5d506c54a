// Three ranks that do not agree about when a save begins, over the simulated
// disk and network.

#include "ckpt/session/save_host.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sim_world.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::SimJob;
using tests::SimOp;
using tests::SimRank;
using tests::SimWorld;

class SaveHostTest : public testing::TestWithParam<int> {
 protected:
  SaveHostTest() : world_(Seeded(GetParam())) {
    job_ = &world_.StartJob(3);
    EXPECT_TRUE(world_.Claim(*job_).ok());
  }

  static tests::SimWorldOptions Seeded(uint64_t seed) {
    tests::SimWorldOptions options;
    options.seed = seed;
    return options;
  }
  SimRank& rank(int i) { return *job_->ranks[i]; }
  // The next operation of this kind fails, once.
  void Break(SimRank& rank, SimOp op) {
    tests::SimFault fault;
    fault.process = rank.process();
    fault.op = op;
    fault.status = absl::UnavailableError("broken");
    world_.disk().Inject(std::move(fault));
  }
  bool RunUntilSaved() {
    return world_.RunUntil([this] {
      return std::all_of(
          job_->ranks.begin(), job_->ranks.end(),
          [](const auto& r) { return r->saved().has_value() && r->stepped(); });
    });
  }

  SimWorld world_;
  SimJob* job_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Seeds, SaveHostTest, testing::Range(1, 9));

TEST_P(SaveHostTest, ARankThatIsBusyMakesTheOthersSkipAtOnce) {
  // Rank 2 is still closing a file when the others have heard the outcome of an
  // aborted save: its storage is slow.
  rank(2).storage().SetDelay(SimOp::kWrite, absl::Seconds(40));
  Break(rank(1), SimOp::kCreate);
  world_.BeginSave(*job_, 10);
  ASSERT_TRUE(world_.RunUntil([this] {
    return rank(0).saved().has_value() && rank(1).saved().has_value() &&
           rank(0).stepped() && rank(1).stepped();
  }));
  EXPECT_FALSE(rank(2).saved().has_value());
  EXPECT_EQ(rank(0).saved()->outcome, SaveOutcome::kAborted);
  EXPECT_EQ(rank(1).saved()->outcome, SaveOutcome::kFailed);

  const absl::Duration before = world_.clock().Monotonic();
  world_.BeginSave(*job_, 20);
  ASSERT_TRUE(world_.RunUntil([this] {
    return rank(0).saved().has_value() && rank(1).saved().has_value();
  }));
  for (const int i : {0, 1}) {
    EXPECT_EQ(rank(i).saved()->outcome, SaveOutcome::kSkipped)
        << rank(i).saved()->status;
    EXPECT_THAT(std::string(rank(i).saved()->status.message()),
                HasSubstr("rank 2"));
  }
  EXPECT_LT(world_.clock().Monotonic() - before, absl::Seconds(100));

  rank(2).storage().SetDelay(SimOp::kWrite, absl::ZeroDuration());
  ASSERT_TRUE(world_.RunUntil(
      [this] { return !rank(2).host().saves().busy() && rank(2).stepped(); }));
  EXPECT_TRUE(world_.Save(*job_, 30).ok());
}

TEST_P(SaveHostTest, TheSameStepCanBeTriedAgain) {
  Break(rank(1), SimOp::kSync);
  EXPECT_FALSE(world_.Save(*job_, 10).ok());
  EXPECT_TRUE(world_.Save(*job_, 10).ok());
  EXPECT_EQ(rank(0).saved()->id.attempt, 2u);
  EXPECT_EQ(rank(2).saved()->id, rank(0).saved()->id);
}

TEST_P(SaveHostTest, ARankThatNeverBeginsIsNamedAndTheNextSaveIsWhole) {
  for (const int i : {0, 1}) {
    rank(i).Fill(10);
    rank(i).BeginSave(10, 0);
  }
  ASSERT_TRUE(world_.RunUntil([this] {
    return rank(0).saved().has_value() && rank(1).saved().has_value() &&
           rank(0).stepped() && rank(1).stepped();
  }));
  EXPECT_EQ(rank(0).saved()->status.code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(rank(0).saved()->status.message()),
              HasSubstr("1 of 3 ranks did not vote within 120 s: 2 (on node "
                        "sim1); this save is abandoned"));
  EXPECT_TRUE(world_.Save(*job_, 20).ok());
}

TEST_P(SaveHostTest, WithoutRankZeroEveryRankGivesUpByItself) {
  for (const int i : {1, 2}) {
    rank(i).Fill(10);
    rank(i).BeginSave(10, 0);
  }
  ASSERT_TRUE(world_.RunUntil([this] {
    return rank(1).saved().has_value() && rank(2).saved().has_value() &&
           rank(1).stepped() && rank(2).stepped();
  }));
  EXPECT_THAT(std::string(rank(1).saved()->status.message()),
              HasSubstr("rank 0 (sim0) did not begin within 60 s"));
  EXPECT_TRUE(world_.Save(*job_, 20).ok());
}

TEST_P(SaveHostTest, AnAttemptIsSweptWhenItsLastRankHasSaidDone) {
  rank(2).storage().SetDelay(SimOp::kWrite, absl::Seconds(40));
  Break(rank(1), SimOp::kCreate);
  world_.BeginSave(*job_, 10);
  ASSERT_TRUE(world_.RunUntil([this] { return rank(0).saved().has_value(); }));
  const auto attempts = [this] {
    int dirs = 0;
    for (const std::string& name : world_.disk().Names()) {
      dirs += name.starts_with("checkpoints/step-") && name.ends_with(".a01/");
    }
    return dirs;
  };
  EXPECT_EQ(attempts(), 1) << "rank 2 may still write there";
  ASSERT_TRUE(RunUntilSaved());
  ASSERT_TRUE(world_.RunUntil([&] { return attempts() == 0; }));
}

// Rank 0's storage stops to answer one kind of call. Everybody hears that the
// save is over; nothing was committed, so nobody is told "unknown".
TEST_P(SaveHostTest, WhenRankZerosStorageFallsSilentTheSaveIsAborted) {
  int64_t step = 0;
  for (const SimOp op : {SimOp::kMakeDir, SimOp::kList}) {
    SCOPED_TRACE(std::string(Name(op)));
    rank(0).storage().SetDelay(op, absl::Hours(2));
    const absl::Duration before = world_.clock().Monotonic();
    world_.BeginSave(*job_, ++step);
    ASSERT_TRUE(RunUntilSaved());
    for (const int i : {0, 1, 2}) {
      EXPECT_TRUE(rank(i).saved()->outcome == SaveOutcome::kAborted ||
                  rank(i).saved()->outcome == SaveOutcome::kFailed)
          << i << ": " << NameOf(rank(i).saved()->outcome) << ", "
          << rank(i).saved()->status;
    }
    EXPECT_LT(world_.clock().Monotonic() - before, absl::Minutes(10));
    // It comes back; what it did late does no harm.
    rank(0).storage().SetDelay(op, absl::ZeroDuration());
    world_.clock().Sleep(absl::Hours(3));
    ASSERT_TRUE(world_.RunUntil([this] {
      return !rank(0).host().saves().busy() && !rank(1).host().saves().busy() &&
             !rank(2).host().saves().busy();
    }));
    EXPECT_TRUE(world_.Save(*job_, ++step).ok());
  }
}

// A metadata server sees one rank: the others create, write and sync their own
// file, and read.
TEST_P(SaveHostTest, OnlyRankZeroMakesListsRenamesAndRemoves) {
  for (const int i : {1, 2}) {
    for (const SimOp op : {SimOp::kMakeDir, SimOp::kRename, SimOp::kLink,
                           SimOp::kRemove, SimOp::kPut, SimOp::kList}) {
      tests::SimFault fault;
      fault.process = rank(i).process();
      fault.op = op;
      fault.from_then_on = true;
      fault.status = absl::InternalError("this is for rank 0 alone");
      world_.disk().Inject(std::move(fault));
    }
  }
  for (const int64_t step : {10, 20, 30}) {
    EXPECT_TRUE(world_.Save(*job_, step).ok());
    world_.FinishRetention(*job_);
  }
}

// The disk has room for one checkpoint and half of another.
TEST_P(SaveHostTest, ADiskThatFillsCostsOneSaveAndIsEmptiedAgain) {
  ASSERT_TRUE(world_.Save(*job_, 10).ok());
  world_.FinishRetention(*job_);
  uint64_t total = 0;
  for (const int i : {0, 1, 2}) total += rank(i).saved()->bytes;
  const uint64_t room = total + total / 2 + 65536;
  world_.disk().LimitSpace(room);
  const absl::Status full = world_.Save(*job_, 20);
  EXPECT_FALSE(full.ok());
  bool said = false;
  for (const int i : {0, 1, 2}) {
    said |= absl::IsResourceExhausted(rank(i).saved()->status);
  }
  EXPECT_TRUE(said) << full;
  const auto attempt_is_there = [this] {
    const std::vector<std::string> names = world_.disk().Names();
    return std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.find("step-000000020") != std::string::npos;
    });
  };
  EXPECT_TRUE(world_.RunUntil([&] { return !attempt_is_there(); }))
      << "what does not count still takes the space";
  world_.disk().LimitSpace(2 * room);
  EXPECT_TRUE(world_.Save(*job_, 30).ok());
  world_.KillAllJobs();
  const absl::StatusOr<int64_t> found = world_.LoadAndCheck(2);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, 30);
}

}  // namespace
}  // namespace holdfast::ckpt
