// What retention takes away, and what it never does.

#include "ckpt/session/retention_session.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sweep_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tests::SimFault;
using tests::SimOp;
using tests::SimStorage;

constexpr CheckpointId k400{400, 3, 1};
constexpr CheckpointId k500{500, 3, 2};

constexpr int64_t kNow = 1'700'000'000'000;

RunLedger Ledger() {
  RunLedger ledger;
  ledger.run_id = tests::kTestRun;
  ledger.incarnation = 3;
  ledger.seal.incarnation = 3;
  ledger.seal.line = {{k100, 1, 0}, {k200, 1, 0}, {k300, 2, 0}};
  ledger.seal.head = k300;
  return ledger;
}

TEST(PlanRetentionTest, NothingGoesBeforeThisOwnerHasCommitted) {
  EXPECT_THAT(PlanRetention(Ledger(), {.keep_last = 1}, kNow), IsEmpty());
}

TEST(PlanRetentionTest, TheNewestCommittedOnesStay) {
  RunLedger ledger = Ledger();
  ledger.committed = {k400, k500};
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 1}, kNow),
              ElementsAre(k100, k200, k300, k400));
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 3}, kNow),
              ElementsAre(k100, k200));
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 5}, kNow), IsEmpty());
}

TEST(PlanRetentionTest, MultiplesOfKeepEveryStay) {
  RunLedger ledger = Ledger();
  ledger.committed = {k400, k500};
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 1, .keep_every = 200}, kNow),
              ElementsAre(k100, k300));
}

// A save every hour, one that is 6 hours old wanted: played forward, there is
// always one of 6 to 13 hours as soon as there can be, and never more than two
// beside the newest.
TEST(PlanRetentionTest, OneThatIsOldEnoughIsAlwaysThere) {
  constexpr int64_t kHour = 3'600'000;
  const RetentionPolicy policy{.keep_last = 2, .keep_older_s = 6 * 3600};
  RunLedger ledger;
  ledger.incarnation = 1;
  for (int64_t hour = 0; hour < 100; ++hour) {
    const int64_t now = kNow + hour * kHour;
    const CheckpointId id{hour, 1, static_cast<uint32_t>(hour + 1)};
    ledger.committed.push_back(id);
    ledger.committed_unix_ms[id] = now;
    for (const CheckpointId& gone : PlanRetention(ledger, policy, now)) {
      std::erase(ledger.committed, gone);
    }
    ASSERT_LE(ledger.committed.size(), 4u) << hour;
    const int64_t oldest =
        now - ledger.committed_unix_ms.at(ledger.committed.front());
    ASSERT_GE(oldest, std::min<int64_t>(hour, 6) * kHour) << hour;
    ASSERT_LE(oldest, 13 * kHour) << hour;
  }
}

TEST(PlanRetentionTest, AClockThatIsWrongOnlyKeepsMore) {
  RunLedger ledger = Ledger();
  ledger.committed = {k400, k500};
  const std::vector<CheckpointId> without =
      PlanRetention(ledger, {.keep_last = 2}, kNow);
  for (const int64_t at : {int64_t{0}, kNow, 2 * kNow}) {
    for (const CheckpointId& id : {k100, k200, k300, k400, k500}) {
      ledger.committed_unix_ms[id] = at;
    }
    EXPECT_THAT(without,
                testing::IsSupersetOf(PlanRetention(
                    ledger, {.keep_last = 2, .keep_older_s = 10}, kNow)));
  }
}

TEST(PlanRetentionTest, AnUnknownOneNeitherCountsNorGoes) {
  RunLedger ledger = Ledger();
  ledger.committed = {k400};
  ledger.unknown = {k500};
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 1}, kNow),
              ElementsAre(k100, k200, k300));
}

TEST(PlanRetentionTest, SupersededOnesStayUntilEnoughHasBeenCommitted) {
  RunLedger ledger = Ledger();
  ledger.seal.superseded = {{{{350, 2, 3}, 3, 0}, "rewind"}};
  ledger.committed = {k400};
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 2}, kNow),
              ElementsAre(k100, k200));
  ledger.committed = {k400, k500};
  EXPECT_THAT(PlanRetention(ledger, {.keep_last = 2}, kNow),
              ElementsAre(k100, k200, k300, CheckpointId{350, 2, 3}));
}

class RetentionSessionTest : public SweepTest {
 protected:
  // Owner 3 has started and committed step 400.
  RetentionSessionTest() {
    const auto world = Start();
    HF_CHECK(world->result(0).status.ok(), "%s",
             world->result(0).status.ToString());
    ledger_.run_id = tests::kTestRun;
    ledger_.incarnation = 3;
    ledger_.seal = world->result(0).seal;
    SimStorage storage(disk_, {.process = 90});
    Write(storage, k400, 1, k300);
    ledger_.committed = {k400};
  }

  RetentionOutcome Retire(RetentionPolicy policy) {
    SimStorage storage(disk_, {.process = 70});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 5;
    env.ops_max = 4;
    RetentionSession session(env, ledger_, policy);
    RunAlone(&storage, &clock, &session);
    return session.outcome();
  }

  std::vector<CheckpointId> There() {
    std::vector<CheckpointId> ids;
    for (const CatalogEntry& entry : Look().entries) ids.push_back(entry.id);
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  RunLedger ledger_;
};

TEST_F(RetentionSessionTest, OldCheckpointsGoWithAllTheirFiles) {
  const RetentionOutcome outcome = Retire({.keep_last = 2});
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.removed, ElementsAre(k100, k200));
  EXPECT_THAT(There(), ElementsAre(k300, k400));
  EXPECT_EQ(Start()->LoadedBy(400), "");
}

TEST_F(RetentionSessionTest, AttemptsOfEarlierOwnersAreSweptAndOnlyThose) {
  constexpr CheckpointId kDead{350, 2, 3};
  constexpr CheckpointId kInFlight{500, 3, 2};
  constexpr CheckpointId kAborted{450, 3, 3};
  MakeAttempt(kDead);
  MakeAttempt(kInFlight);
  MakeAttempt(kAborted);
  EXPECT_THAT(Retire({.keep_last = 9}).swept, ElementsAre(kDead));
  EXPECT_THAT(There(), testing::IsSupersetOf({kInFlight, kAborted}));
  ledger_.aborted = {kAborted};
  EXPECT_THAT(Retire({.keep_last = 9}).swept, ElementsAre(kAborted));
  ledger_.unknown = {kInFlight};
  ledger_.aborted = {kInFlight};
  EXPECT_THAT(Retire({.keep_last = 9}).swept, IsEmpty());
}

TEST_F(RetentionSessionTest, AnAbortedAttemptThatHasAManifestIsLeftAlone) {
  SimStorage storage(disk_, {.process = 90});
  Write(storage, k500, 2, k400);
  ledger_.aborted = {k500};
  EXPECT_THAT(Retire({.keep_last = 9}).swept, IsEmpty());
  EXPECT_EQ(Start()->LoadedBy(500), "");
}

TEST_F(RetentionSessionTest, AnOwnerThatHasLostTheRunRemovesNothing) {
  SimStorage storage(disk_, {.process = 90});
  Check(tests::Claim(storage, 4));
  const RetentionOutcome outcome = Retire({.keep_last = 1});
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status));
  EXPECT_THAT(outcome.removed, IsEmpty());
  EXPECT_EQ(There().size(), 4);
}

TEST_F(RetentionSessionTest, WhatCannotBeRemovedNowIsRemovedNextTime) {
  SimFault fault;
  fault.op = SimOp::kRemove;
  fault.name_contains = "shard-00003";
  fault.status = absl::UnavailableError("server is away");
  disk_.Inject(fault);
  const RetentionOutcome failed = Retire({.keep_last = 2});
  EXPECT_TRUE(absl::IsUnavailable(failed.status));
  // It has lost its manifest first: nobody takes the rest for a checkpoint.
  EXPECT_EQ(NameOf(Look().Find(k100)->state), "attempt");
  EXPECT_TRUE(Retire({.keep_last = 2}).status.ok());
  EXPECT_THAT(There(), ElementsAre(k300, k400));
}

}  // namespace
}  // namespace holdfast::ckpt
