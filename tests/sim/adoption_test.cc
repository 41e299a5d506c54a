// A job takes a run from the one before, and anything may happen meanwhile: the
// power goes or a rank dies after every storage operation of the start, each
// operation fails once, another job claims the same run, the old owner is still
// alive and deletes and commits. Whatever happens, the next start finds step
// 300, the newest that counts, and every byte of it.
//
// The disk keeps names in the order of its journal (a rename is whole or
// absent), as ext4, xfs and btrfs do. Without that no directory can be renamed
// safely; storages that cannot rename are adopted by the seal alone.

#include <functional>
#include <memory>

#include "absl/strings/str_format.h"
#include "ckpt/session/retention_session.h"
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

constexpr CheckpointId kZombie{400, 2, 3};

class AdoptionTest : public StartTest {
 protected:
  static constexpr int kOtherJob = 20;  // its first process

  StartWorld::Options Seeded(uint64_t seed) {
    StartWorld::Options options;
    options.seed = seed;
    return options;
  }

  int64_t OpsOfOneStart() {
    const auto disk = disk_.Clone();
    const int64_t before = disk->ops();
    StartWorld world(*disk, *layout_, Seeded(1));
    world.Run();
    EXPECT_EQ(world.LoadedBy(300), "");
    return disk->ops() - before;
  }

  // A start on another disk than the fixture's.
  static std::string LoadedOn(SimDisk& disk, const JobLayout& layout,
                              uint64_t step) {
    StartWorld::Options options;
    options.first_process = 60;
    StartWorld world(disk, layout, options);
    world.Run();
    return world.LoadedBy(step);
  }

  // The old owner has an attempt whose shards are all there.
  Manifest PrepareZombie() {
    SimStorage storage(disk_, {.process = 90});
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    spec.id = kZombie;
    spec.commit_number = 3;
    spec.parent = k300;
    spec.seed = 400;
    auto manifest =
        tests::WriteShards(storage, *saved_layout_, spec, AttemptDir(kZombie));
    Check(manifest.status());
    return *std::move(manifest);
  }

  // The old owner's retention, which keeps only the newest.
  static std::unique_ptr<RetentionSession> OldRetention(SimStorage& storage,
                                                        tests::SimClock& clock,
                                                        uint16_t space) {
    RunLedger ledger;
    ledger.run_id = tests::kTestRun;
    ledger.incarnation = 2;
    ledger.seal.incarnation = 2;
    ledger.seal.line = {{k100, 1, 0}};
    ledger.seal.head = k100;
    ledger.committed = {k200, k300};
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = space;
    env.ops_max = 2;
    return std::make_unique<RetentionSession>(env, ledger,
                                              RetentionPolicy{.keep_last = 1});
  }
};

TEST_F(AdoptionTest, APowerCutAfterAnyOperationLosesNothing) {
  const int64_t ops = OpsOfOneStart();
  ASSERT_GT(ops, 10);
  bool saw_unsealed = false;
  bool saw_sealed = false;
  for (int64_t cut = 0; cut <= ops; ++cut) {
    for (int fate = 0; fate < SeedsOfSweep(2); ++fate) {
      SCOPED_TRACE(absl::StrFormat("cut after %d, fate %d", cut, fate));
      const auto disk = disk_.Clone();
      StartWorld world(*disk, *layout_, Seeded(1 + fate));
      disk->CutPowerAfter(cut);
      while (!disk->power_is_off() && world.Poll()) {
      }
      disk->PowerCycle(fate);
      SimStorage look(*disk, {.process = 95});
      const bool sealed = Blocking(look).Get(SealName(3), kRecordBytesMax).ok();
      saw_sealed |= sealed;
      saw_unsealed |= !sealed;
      EXPECT_EQ(LoadedOn(*disk, *layout_, 300), "") << disk->Log(30);
    }
  }
  EXPECT_TRUE(saw_unsealed);
  EXPECT_TRUE(saw_sealed);
}

TEST_F(AdoptionTest, ADeathAfterAnyOperationEndsTheStartAndLosesNothing) {
  const int64_t ops = OpsOfOneStart();
  for (int64_t after = 0; after <= ops; ++after) {
    SCOPED_TRACE(absl::StrFormat("rank 0 dies after %d", after));
    const auto disk = disk_.Clone();
    StartWorld world(*disk, *layout_, Seeded(after + 1));
    disk->KillAfter(0, after);
    world.Run();
    for (int r = 1; r < world.world(); ++r) {
      if (!world.dead(0)) continue;
      EXPECT_TRUE(absl::IsDeadlineExceeded(world.result(r).status))
          << world.result(r).status;
      EXPECT_THAT(world.result(r).status.message(),
                  testing::HasSubstr("rank 0 (sim0)"));
    }
    EXPECT_EQ(LoadedOn(*disk, *layout_, 300), "") << disk->Log(30);
  }
}

TEST_F(AdoptionTest, AnyOperationMayFailOnceAndNothingIsLost) {
  const int64_t ops = OpsOfOneStart();
  int started = 0;
  for (int64_t nth = 1; nth <= ops; ++nth) {
    for (const absl::StatusCode code :
         {absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted,
          absl::StatusCode::kPermissionDenied}) {
      SCOPED_TRACE(absl::StrFormat("operation %d fails with %d", nth,
                                   static_cast<int>(code)));
      const auto disk = disk_.Clone();
      // The n-th operation that changes the disk, whatever it is.
      int64_t seen = 0;
      const int64_t before = disk->ops();
      StartWorld world(*disk, *layout_, Seeded(nth));
      bool armed = false;
      while (true) {
        if (!armed && disk->ops() - before >= nth - 1) {
          SimFault fault;
          fault.status = absl::Status(code, "injected");
          disk->Inject(fault);
          armed = true;
        }
        if (!world.Poll()) break;
        ++seen;
      }
      disk->ClearFaults();
      if (world.LoadedBy(300).empty()) {
        ++started;
      } else {
        EXPECT_FALSE(world.result(0).status.ok());
      }
      EXPECT_EQ(LoadedOn(*disk, *layout_, 300), "") << disk->Log(30);
    }
  }
  // Some of it was survived by the start itself.
  EXPECT_GT(started, 0);
}

TEST_F(AdoptionTest, OfTwoJobsThatStartTogetherTheRunKeepsWhatItHad) {
  int both = 0;
  int lost = 0;
  for (int seed = 1; seed <= SeedsOfSweep(20); ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    const auto disk = disk_.Clone();
    StartWorld::Options second = Seeded(seed + 1000);
    second.first_process = kOtherJob;
    StartWorld a(*disk, *layout_, Seeded(seed));
    StartWorld b(*disk, *layout_, second);
    tests::SimRandom random(seed, 5);
    bool more = true;
    while (more) {
      const bool first = random.Coin();
      more = first ? a.Poll() : b.Poll();
      if (!more) more = first ? b.Poll() : a.Poll();
    }
    EXPECT_NE(a.result(0).incarnation, b.result(0).incarnation);
    int owners = 0;
    for (StartWorld* world : {&a, &b}) {
      if (world->result(0).status.ok()) {
        EXPECT_EQ(world->LoadedBy(300), "");
        ++owners;
      } else {
        EXPECT_TRUE(absl::IsFailedPrecondition(world->result(0).status))
            << world->result(0).status;
      }
    }
    EXPECT_GE(owners, 1);
    both += owners == 2;
    lost += owners == 1;
    EXPECT_EQ(LoadedOn(*disk, *layout_, 300), "") << disk->Log(40);
  }
  EXPECT_GT(lost, 0);
  // One was through before the other began; it will notice at its next save.
  SUCCEED() << both << " pairs were both through";
}

TEST_F(AdoptionTest, TheOldOwnersRetentionAtAnyMomentOfAStartIsHarmless) {
  int removed = 0;
  for (int seed = 1; seed <= SeedsOfSweep(30); ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    const auto disk = disk_.Clone();
    SimStorage storage(*disk, {.process = 80});
    tests::SimClock clock;
    const auto retention = OldRetention(storage, clock, 3);
    StartWorld world(*disk, *layout_, Seeded(seed));
    tests::SimRandom random(seed, 6);
    const uint64_t share = 1 + random.Below(11);
    bool more = true;
    while (more || !retention->done()) {
      if (random.Below(12) < share) {
        Completion answer;
        if (storage.Poll({&answer, 1}) > 0) retention->OnCompletion(answer);
        if (!retention->done()) retention->Poll();
      } else {
        more = world.Poll();
      }
    }
    EXPECT_EQ(world.LoadedBy(300), "") << disk->Log(40);
    removed += retention->outcome().removed.size();
    // What the new owner sealed is there, to the last file.
    for (const SealedCheckpoint& sealed : world.result(0).seal.line) {
      for (int file = 0; file < saved_layout_->world(); ++file) {
        SimStorage look(*disk, {.process = 95});
        EXPECT_TRUE(Blocking(look)
                        .Open(absl::StrFormat("%s/shard-%05d.hf",
                                              AdoptedDir(sealed.id, 3), file),
                              FileId{1})
                        .ok())
            << ToString(sealed.id);
      }
    }
    EXPECT_EQ(LoadedOn(*disk, *layout_, 300), "");
  }
  EXPECT_GT(removed, 0) << "the retention never came first";
}

TEST_F(AdoptionTest, ACommitOfTheOldOwnerCountsOnlyBeforeTheNewOneHasLooked) {
  const Manifest zombie = PrepareZombie();
  const int64_t ops = OpsOfOneStart();
  bool counted = false;
  bool late = false;
  for (int64_t after = 0; after <= ops; ++after) {
    SCOPED_TRACE(absl::StrFormat("committed after %d", after));
    const auto disk = disk_.Clone();
    SimStorage storage(*disk, {.process = 80});
    StartWorld world(*disk, *layout_, Seeded(after + 1));
    const int64_t before = disk->ops();
    while (disk->ops() - before < after && world.Poll()) {
    }
    Check(tests::WriteManifest(storage, AttemptDir(kZombie), zombie));
    world.Run();
    // Either it was seen before the choice and counts for good, or never.
    const uint64_t step =
        world.result(0).loaded ? world.result(0).loaded->id.step : 0;
    EXPECT_TRUE(step == 300 || step == 400) << step;
    EXPECT_EQ(world.LoadedBy(step), "");
    EXPECT_EQ(LoadedOn(*disk, *layout_, step), "") << disk->Log(30);
    counted |= step == 400;
    late |= step == 300;
  }
  EXPECT_TRUE(counted);
  EXPECT_TRUE(late);
}

TEST_F(AdoptionTest, ALateCommitIsNeverSeenUnlessTheSealIsIgnored) {
  const Manifest zombie = PrepareZombie();
  ASSERT_EQ(Start()->LoadedBy(300), "");
  SimStorage storage(disk_, {.process = 80});
  Check(tests::WriteManifest(storage, AttemptDir(kZombie), zombie));
  EXPECT_EQ(NameOf(Look().Find(kZombie)->state), "late");
  EXPECT_EQ(LoadedOn(*disk_.Clone(), *layout_, 300), "");
  // The canary: a start that does not look at the seal takes it.
  const auto disk = disk_.Clone();
  StartWorld::Options canary;
  canary.owner.canary_ignore_seal = true;
  StartWorld world(*disk, *layout_, canary);
  world.Run();
  EXPECT_NE(world.LoadedBy(300), "") << "the canary was not caught";
}

TEST_F(AdoptionTest, OnAnObjectStoreTheSealAloneKeepsALateCommitAway) {
  tests::SimDiskOptions options;
  options.object_store = true;
  SimDisk store(options);
  SimStorage storage(store, {.process = 90});
  StartWorld first(store, *layout_, Seeded(1));
  first.Run();
  ASSERT_TRUE(first.result(0).status.ok()) << first.result(0).status;
  Write(storage, {100, 1, 1}, 1, std::nullopt);
  tests::CheckpointSpec spec;
  spec.run_id = tests::kTestRun;
  spec.id = {200, 1, 2};
  spec.commit_number = 2;
  spec.seed = 200;
  const auto late =
      tests::WriteShards(storage, *saved_layout_, spec, AttemptDir(spec.id));
  Check(late.status());
  EXPECT_EQ(LoadedOn(store, *layout_, 100), "");
  Check(tests::WriteManifest(storage, AttemptDir(spec.id), *late));
  EXPECT_EQ(LoadedOn(store, *layout_, 100), "");
}

}  // namespace
}  // namespace holdfast::ckpt
