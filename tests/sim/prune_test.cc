// Pruning by hand with the power cut, or its process killed, after every
// storage operation, and with each operation failing once. What is on the line
// stays whole to the last byte, the newest loads, and pruning again finishes
// the work.

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/session/prune_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"
#include "tests/support/sweep_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using tests::SeedsOfSweep;
using tests::SimDisk;
using tests::SimFault;
using tests::SimStorage;

constexpr CheckpointId kDead{350, 2, 3};

// Owner 2 has committed 200 and 300 after owner 1's 100, and an attempt of it
// lies about.
class PruneSweep : public SweepTest {
 protected:
  PruneSweep() { MakeAttempt(kDead); }

  // Claims, and removes all but the newest. False: it did not come to its end.
  static bool Prune(SimDisk& disk, uint64_t seed, int process = 70) {
    SimStorage storage(disk, {.process = process});
    tests::SimClock clock;
    SessionEnv env = EnvOf(storage, clock, 5, 1 + static_cast<int>(seed % 4));
    PruneOptions options;
    options.policy.keep_last = 1;
    OwnerClaim who;
    who.host = "here";
    who.pid = process;
    PruneClaimSession claim(env, options, who);
    if (!Drive(storage, clock, claim) || !claim.result().ok()) return false;
    env.space = 6;
    RetentionSession retention(env, *claim.result(), options.policy);
    return Drive(storage, clock, retention) && retention.outcome().status.ok();
  }

  int64_t OpsOfOne() {
    return OpsOf([](SimDisk& disk) { return Prune(disk, 1); });
  }

  // "" when the newest is 300, and all that is offered is whole.
  static std::string Wrong(SimDisk& disk) {
    const Catalog catalog = LookAt(disk);
    if (catalog.newest() == nullptr || catalog.newest()->id != k300) {
      return "300 is not the newest";
    }
    return Damage(disk);
  }

  static std::vector<CheckpointId> There(SimDisk& disk) {
    std::vector<CheckpointId> ids;
    for (const CatalogEntry& entry : LookAt(disk).entries) {
      ids.push_back(entry.id);
    }
    return ids;
  }
};

TEST_F(PruneSweep, APowerCutAfterAnyOperationLeavesTheLineWhole) {
  const int64_t ops = OpsOfOne();
  ASSERT_GT(ops, 30);
  bool saw_begun = false;
  bool saw_untouched = false;
  for (int64_t cut = 0; cut <= ops; ++cut) {
    for (int fate = 0; fate < SeedsOfSweep(2); ++fate) {
      SCOPED_TRACE(absl::StrFormat("cut after %d, fate %d", cut, fate));
      const auto disk = disk_.Clone();
      disk->CutPowerAfter(cut);
      Prune(*disk, fate);
      disk->PowerCycle(fate);
      ASSERT_EQ(Wrong(*disk), "") << disk->Log(40);
      const Catalog catalog = LookAt(*disk);
      const CatalogEntry* const first = catalog.Find(k100);
      const bool there =
          first != nullptr && first->state == EntryState::kCommitted;
      saw_untouched |= there;
      saw_begun |= !there;
      ASSERT_TRUE(Prune(*disk, fate, /*process=*/71));
      ASSERT_EQ(Wrong(*disk), "");
      EXPECT_THAT(There(*disk), ElementsAre(k300));
    }
  }
  EXPECT_TRUE(saw_begun);
  EXPECT_TRUE(saw_untouched);
}

TEST_F(PruneSweep, AJobStartsFromTheNewestWhereverItWasKilled) {
  const int64_t ops = OpsOfOne();
  for (int64_t at = 0; at <= ops; at += 3) {
    SCOPED_TRACE(absl::StrFormat("killed after %d", at));
    const auto disk = disk_.Clone();
    disk->KillAfter(70, at);
    Prune(*disk, at);
    ASSERT_EQ(LoadedOn(*disk, 300), "");
  }
}

TEST_F(PruneSweep, AnyOperationMayFailOnce) {
  const int64_t ops = OpsOfOne();
  int failed = 0;
  for (int64_t at = 1; at <= ops; ++at) {
    SCOPED_TRACE(absl::StrFormat("operation %d fails", at));
    const auto disk = disk_.Clone();
    SimFault fault;
    fault.process = 70;
    fault.nth = at;
    fault.status = absl::UnavailableError("server is away");
    disk->Inject(fault);
    failed += !Prune(*disk, at);
    ASSERT_EQ(Wrong(*disk), "") << disk->Log(40);
    ASSERT_TRUE(Prune(*disk, at, /*process=*/71));
    EXPECT_THAT(There(*disk), ElementsAre(k300));
  }
  EXPECT_GT(failed, 0);
}

// A job that had the run, and lives, neither commits nor removes after it.
TEST_F(PruneSweep, WhoPrunesOwnsTheRun) {
  ASSERT_TRUE(Prune(disk_, 1));
  SimStorage storage(disk_, {.process = 80});
  tests::SimClock clock;
  RunLedger ledger;
  ledger.run_id = tests::kTestRun;
  ledger.incarnation = 2;
  ledger.committed = {k200, k300};
  SessionEnv env;
  env.storage = &storage;
  env.clock = &clock;
  env.space = 5;
  RetentionSession old_owner(env, ledger, {.keep_last = 1});
  RunAlone(&storage, &clock, &old_owner);
  EXPECT_EQ(Wrong(disk_), "");
  EXPECT_THAT(There(disk_), ElementsAre(k300));
}

// Between looking whether somebody lives and the claim lies a verification.
TEST_F(PruneSweep, AJobThatBeganMeanwhileKeepsTheRun) {
  SimStorage storage(disk_, {.process = 81});
  OwnerClaim job;
  job.run_id = tests::kTestRun;
  job.incarnation = LookAt(disk_).newest_claim + 1;
  Check(Blocking(storage).PutIfAbsent(ClaimName(job.incarnation),
                                      EncodeClaim(job)));
  tests::SimClock clock;
  SessionEnv env;
  env.storage = &storage;
  env.clock = &clock;
  env.space = 5;
  env.ops_max = 4;
  PruneOptions options;
  options.policy.keep_last = 1;
  options.newest_claim = job.incarnation - 1;
  PruneClaimSession claim(env, options, {});
  RunAlone(&storage, &clock, &claim);
  EXPECT_EQ(claim.result().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(LookAt(disk_).newest_claim, job.incarnation);
  options.newest_claim = job.incarnation;
  env.space = 6;
  PruneClaimSession after(env, options, {});
  RunAlone(&storage, &clock, &after);
  EXPECT_TRUE(after.result().ok()) << after.result().status();
}

}  // namespace
}  // namespace holdfast::ckpt
