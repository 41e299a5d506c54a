// Retention with the power cut, or its process killed, after every storage
// operation, and with each operation failing once. What is on the line stays
// whole to the last byte, the newest loads, and the next retention finishes the
// work.

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "ckpt/session/retention_session.h"
#include "ckpt/session/verify_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sim_cases.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using tests::SeedsOfSweep;
using tests::SimDisk;
using tests::SimFault;
using tests::SimStorage;
using tests::StartWorld;

constexpr CheckpointId k400{400, 3, 1};
constexpr CheckpointId kDead{350, 2, 3};
constexpr CheckpointId kAborted{450, 3, 2};

// Owner 3 has loaded step 300 and committed step 400; an attempt of owner 2 and
// an aborted one of its own lie about.
class RetentionSweep : public StartTest {
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
    for (const CheckpointId& id : {kDead, kAborted}) {
      tests::CheckpointSpec spec;
      spec.run_id = tests::kTestRun;
      spec.id = id;
      Check(tests::WriteShards(storage, *saved_layout_, spec, AttemptDir(id))
                .status());
    }
  }

  // False: it did not come to its end.
  bool Retire(SimDisk& disk, uint64_t seed, int process = 70) {
    SimStorage storage(disk, {.process = process});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 5;
    env.ops_max = 1 + seed % 4;
    RetentionSession session(env, ledger_, {.keep_last = 2});
    while (!storage.dead()) {
      session.Poll();
      if (session.done()) return session.outcome().status.ok();
      Completion answer;
      if (storage.Poll({&answer, 1}) > 0) {
        session.OnCompletion(answer);
      } else {
        clock.Sleep(absl::Milliseconds(1));
      }
    }
    return false;
  }

  int64_t OpsOfOneRetention() {
    const auto disk = disk_.Clone();
    const int64_t before = disk->ops();
    EXPECT_TRUE(Retire(*disk, 1));
    return disk->ops() - before;
  }

  // "" when all that a reader is offered is whole, and 300 and 400 are.
  std::string Wrong(SimDisk& disk) {
    SimStorage storage(disk, {.process = 91});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 9;
    env.ops_max = 8;
    CatalogSession catalog_session(env);
    RunAlone(&storage, &clock, &catalog_session);
    const auto& catalog = catalog_session.result();
    if (!catalog.ok()) return catalog.status().ToString();
    bool has_300 = false;
    bool has_400 = false;
    for (const size_t i : catalog->line) {
      const CatalogEntry& entry = catalog->entries[i];
      has_300 |= entry.id == k300;
      has_400 |= entry.id == k400;
      auto bytes =
          Blocking(storage).Get(entry.dir + "/MANIFEST", kManifestBytesMax);
      if (!bytes.ok()) return bytes.status().ToString();
      const auto manifest = DecodeManifest(*bytes);
      if (!manifest.ok()) return manifest.status().ToString();
      UnitReaderOptions options;
      options.read_bytes_max = kUnitBytesMax;
      VerifySession verify(env, entry.dir, &*manifest, /*hash=*/false, options);
      RunAlone(&storage, &clock, &verify);
      if (!verify.outcome().status.ok()) {
        return entry.dir + ": " + verify.outcome().status.ToString();
      }
    }
    if (!has_300 || !has_400) return "300 or 400 is gone";
    return "";
  }

  std::string LoadedOn(SimDisk& disk) {
    StartWorld::Options options;
    options.first_process = 40;
    StartWorld world(disk, *layout_, options);
    world.Run();
    return world.LoadedBy(400);
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
        EXPECT_EQ(LoadedOn(*disk), "");
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
    EXPECT_EQ(LoadedOn(*disk), "");
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
