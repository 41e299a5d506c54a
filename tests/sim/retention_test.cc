// Retention with the power cut, or its process killed, after every storage
// operation, and with each operation failing once. What is on the line stays
// whole to the last byte, the newest loads, and the next retention finishes the
// work.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/session/retention_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"
#include "tests/support/sweep_fixture.h"

namespace holdfast::ckpt {
namespace {

using tests::SeedsOfSweep;
using tests::SimDisk;
using tests::SimFault;
using tests::SimStorage;

constexpr CheckpointId k400{400, 3, 1};
constexpr CheckpointId kDead{350, 2, 3};
constexpr CheckpointId kAborted{450, 3, 2};

// Owner 3 has loaded step 300 and committed step 400; an attempt of owner 2 and
// an aborted one of its own lie about.
class RetentionSweep : public SweepTest {
 protected:
  RetentionSweep() {
    const auto world = Start();
    HF_CHECK(world->result(0).status.ok(), "%s",
             world->result(0).status.ToString());
    ledger_.run_id = tests::kTestRun;
    ledger_.incarnation = 3;
    ledger_.seal = world->result(0).seal;
    SimStorage storage(disk_, {.process = 90});
    Write(storage, k400, 1, k300);
    ledger_.committed = {k400};
    ledger_.aborted = {kAborted};
    for (const CheckpointId& id : {kDead, kAborted}) MakeAttempt(id);
  }

  // False: it did not come to its end.
  bool Retire(SimDisk& disk, uint64_t seed, int process = 70) const {
    SimStorage storage(disk, {.process = process});
    tests::SimClock clock;
    RetentionSession session(
        EnvOf(storage, clock, 5, 1 + static_cast<int>(seed % 4)), ledger_,
        {.keep_last = 2});
    return Drive(storage, clock, session) && session.outcome().status.ok();
  }

  int64_t OpsOfOneRetention() {
    return OpsOf([this](SimDisk& disk) { return Retire(disk, 1); });
  }

  // "" when all that a reader is offered is whole, and 300 and 400 are.
  static std::string Wrong(SimDisk& disk) {
    const Catalog catalog = LookAt(disk);
    for (const CheckpointId& id : {k300, k400}) {
      const bool there = std::ranges::any_of(
          catalog.line, [&](size_t i) { return catalog.entries[i].id == id; });
      if (!there) return ToString(id) + " is gone";
    }
    return Damage(disk);
  }

  RunLedger ledger_;
};

TEST_F(RetentionSweep, APowerCutAfterAnyOperationLeavesTheLineWhole) {
  const int64_t ops = OpsOfOneRetention();
  ASSERT_GT(ops, 30);
  bool saw_begun = false;
  bool saw_untouched = false;
  for (int64_t cut = 0; cut <= ops; ++cut) {
    for (int fate = 0; fate < SeedsOfSweep(2); ++fate) {
      SCOPED_TRACE(absl::StrFormat("cut after %d, fate %d", cut, fate));
      const auto disk = disk_.Clone();
      disk->CutPowerAfter(cut);
      Retire(*disk, fate);
      disk->PowerCycle(fate);
      ASSERT_EQ(Wrong(*disk), "") << disk->Log(40);
      SimStorage look(*disk, {.process = 95});
      const bool there =
          Blocking(look)
              .Get(AdoptedDir(k100, 3) + "/MANIFEST", kManifestBytesMax)
              .ok();
      saw_untouched |= there;
      saw_begun |= !there;
      // It goes on where it was.
      EXPECT_TRUE(Retire(*disk, fate));
      EXPECT_EQ(Wrong(*disk), "");
      if (fate == 0) {
        EXPECT_EQ(LoadedOn(*disk, 400), "");
      }
    }
  }
  EXPECT_TRUE(saw_begun);
  EXPECT_TRUE(saw_untouched);
}

TEST_F(RetentionSweep, ADeathAfterAnyOperationLeavesTheLineWhole) {
  const int64_t ops = OpsOfOneRetention();
  for (int64_t after = 0; after <= ops; ++after) {
    SCOPED_TRACE(absl::StrFormat("dies after %d", after));
    const auto disk = disk_.Clone();
    disk->KillAfter(70, after);
    Retire(*disk, after);
    ASSERT_EQ(Wrong(*disk), "") << disk->Log(40);
    // The next owner sweeps what is left: it is of an earlier incarnation now.
    EXPECT_EQ(LoadedOn(*disk, 400), "");
  }
}

TEST_F(RetentionSweep, AnyOperationMayFailOnceAndTheNextTimeFinishes) {
  const int64_t ops = OpsOfOneRetention();
  for (int64_t nth = 1; nth <= ops; ++nth) {
    SCOPED_TRACE(absl::StrFormat("operation %d fails", nth));
    const auto disk = disk_.Clone();
    for (const tests::SimOp op :
         {tests::SimOp::kRemove, tests::SimOp::kSyncDir, tests::SimOp::kList}) {
      SimFault fault;
      fault.op = op;
      fault.nth = nth;
      fault.status = absl::UnavailableError("injected");
      disk->Inject(fault);
    }
    Retire(*disk, nth);
    disk->ClearFaults();
    ASSERT_EQ(Wrong(*disk), "") << disk->Log(40);
    EXPECT_TRUE(Retire(*disk, nth));
    ASSERT_EQ(Wrong(*disk), "");
    const std::vector<std::string> names = disk->Names();
    for (const CheckpointId& gone : {k100, k200, kDead, kAborted}) {
      EXPECT_TRUE(std::none_of(names.begin(), names.end(),
                               [&](const std::string& name) {
                                 return name.find(ToString(gone)) !=
                                        std::string::npos;
                               }))
          << ToString(gone);
    }
  }
}

}  // namespace
}  // namespace holdfast::ckpt
