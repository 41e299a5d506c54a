// A job starts on a run: what it takes, what it refuses, what it leaves behind.

#include "ckpt/session/owner_session.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using tests::SimFault;
using tests::SimOp;
using tests::SimStorage;
using tests::SmallLayout;
using tests::StartWorld;

class OwnerSessionTest : public StartTest {};

TEST_F(OwnerSessionTest, AnyLayoutLoadsTheNewestCheckpointBitByBit) {
  for (const auto& [tp, pp, dp] : std::vector<std::array<int, 3>>{
           {2, 2, 2}, {1, 1, 1}, {1, 2, 3}, {4, 1, 1}, {2, 1, 5}, {1, 1, 2}}) {
    SCOPED_TRACE(absl::StrFormat("tp%d-pp%d-dp%d", tp, pp, dp));
    const auto layout = SmallLayout(tp, pp, dp);
    const auto world = Start(*layout);
    EXPECT_EQ(world->LoadedBy(300), "");
    EXPECT_EQ(world->result(0).loaded->layout, "tp2-pp2-dp2");
    EXPECT_EQ(world->result(0).loaded->attributes.at("step"), "300");
    EXPECT_EQ(world->result(0).seal.line.size(), 3);
  }
}

TEST_F(OwnerSessionTest, EachStoredByteIsReadAboutOnceByTheWholeJob) {
  const auto world = Start(*saved_layout_);
  ASSERT_EQ(world->LoadedBy(300), "");
  uint64_t read = 0;
  for (int r = 0; r < world->world(); ++r) {
    read += world->result(r).bytes_read;
  }
  uint64_t stored = 0;
  uint64_t frames = 0;
  for (const ShardFile& file : manifest_300_.files) {
    stored += file.bytes;
    frames += 3 * 4096;
  }
  // Ranks of one DP group all want the weights; a file's frame is read by each
  // rank that reads the file.
  EXPECT_LT(read, 3 * stored + 8 * frames);
}

TEST_F(OwnerSessionTest, TheAdoptedDirectoriesAreOutOfTheOldOwnersReach) {
  const auto world = Start();
  ASSERT_EQ(world->LoadedBy(300), "");
  EXPECT_EQ(world->result(0).incarnation, 3);
  const Catalog catalog = Look();
  EXPECT_EQ(catalog.line.size(), 3);
  for (const size_t i : catalog.line) {
    EXPECT_EQ(catalog.entries[i].owner, 3) << catalog.entries[i].dir;
  }
  // The old owner's path leads nowhere.
  SimStorage old(disk_, {.process = 80});
  EXPECT_TRUE(
      absl::IsNotFound(Blocking(old).Remove(AttemptDir(k300) + "/MANIFEST")));
}

TEST_F(OwnerSessionTest, AnEmptyDirectoryBecomesARun) {
  tests::SimDisk empty({});
  StartWorld world(empty, *layout_, {});
  world.Run();
  for (int r = 0; r < world.world(); ++r) {
    EXPECT_TRUE(world.result(r).status.ok()) << world.result(r).status;
    EXPECT_FALSE(world.result(r).loaded);
    EXPECT_EQ(world.result(r).incarnation, 1);
    EXPECT_EQ(world.result(r).run_id, tests::kTestRun);
  }
  EXPECT_THAT(empty.Names(), testing::IsSupersetOf(
                                 {"run.id", "owners/i0001.claim",
                                  "owners/i0001.seal", "checkpoints/run.id"}));
}

TEST_F(OwnerSessionTest, ARewindTakesAllRanksBackAndIsRecorded) {
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kStep;
  options.owner.resume_step = 299;
  const auto world = Start(options);
  EXPECT_EQ(world->LoadedBy(200), "");
  EXPECT_EQ(world->result(3).stepped_over.size(), 1);
  EXPECT_EQ(Look().newest()->id, k200);
  // A later start does not go forward again.
  EXPECT_EQ(Start()->LoadedBy(200), "");
  EXPECT_EQ(NameOf(Look().Find(k300)->state), "superseded");
}

TEST_F(OwnerSessionTest, AClaimTakesTheRunAsItIsAndLoadsNothing) {
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kClaim;
  const auto world = Start(options);
  for (int r = 0; r < world->world(); ++r) {
    EXPECT_TRUE(world->result(r).status.ok()) << world->result(r).status;
    EXPECT_FALSE(world->result(r).loaded);
    EXPECT_EQ(world->result(r).claimed, k300);
    EXPECT_EQ(world->result(r).bytes_read, 0);
    EXPECT_TRUE(world->result(r).stepped_over.empty());
  }
  EXPECT_EQ(world->result(0).seal.line.size(), 3);
  EXPECT_EQ(world->result(0).seal.head, k300);
  EXPECT_TRUE(world->result(0).seal.superseded.empty());
  EXPECT_EQ(Look().newest()->id, k300);
  // What it claimed is loaded by the next.
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, NeverStartsFreshAndOffersNothingOfThePastAgain) {
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kNever;
  const auto world = Start(options);
  EXPECT_TRUE(world->result(0).status.ok());
  EXPECT_FALSE(world->result(1).loaded);
  EXPECT_TRUE(Look().line.empty());
  // Then nothing is left to resume from, and that is not silent.
  EXPECT_TRUE(absl::IsNotFound(Start()->result(2).status));
}

TEST_F(OwnerSessionTest, AForgottenMountStopsTheJobBeforeItTouchesAnything) {
  tests::SimDisk disk({});
  SimStorage storage(disk, {.process = 90});
  Blocking blocking(storage);
  Check(tests::MakeRun(storage));
  Check(tests::Claim(storage, 1));
  Check(tests::Seal(storage, {.run_id = {},
                              .incarnation = 1,
                              .head = {},
                              .line = {},
                              .superseded = {}}));
  Check(blocking.Remove("checkpoints/run.id"));  // an empty mount point
  const auto before = disk.Names();
  StartWorld world(disk, *layout_, {});
  world.Run();
  for (int r = 0; r < world.world(); ++r) {
    EXPECT_TRUE(absl::IsNotFound(world.result(r).status));
    EXPECT_THAT(world.result(r).status.message(), HasSubstr("not mounted?"));
  }
  EXPECT_EQ(disk.Names(), before);
}

TEST_F(OwnerSessionTest, AnotherShapeIsRefusedByNameAndNothingIsTouched) {
  class Other final : public JobLayout {
   public:
    explicit Other(const JobLayout& inner)
        : inner_(inner), items_(inner.items()) {
      items_[0].shape[0] += 1;
    }
    int world() const override { return inner_.world(); }
    const std::vector<ItemSpec>& items() const override { return items_; }
    Holding StoredBy(Rank rank) const override { return inner_.StoredBy(rank); }
    Holding WantedBy(Rank rank) const override { return inner_.WantedBy(rank); }
    std::string description() const override { return "other"; }

   private:
    const JobLayout& inner_;
    std::vector<ItemSpec> items_;
  };
  const Other other(*layout_);
  const auto before = disk_.Names();
  const auto world = Start(other);
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(1).status));
  EXPECT_THAT(world->result(1).status.message(),
              HasSubstr("exp_avg of 'lm_head.weight': the checkpoint has "
                        "f32[90,64], this job wants f32[91,64]"));
  EXPECT_EQ(disk_.Names(), before);
}

TEST_F(OwnerSessionTest, WhatTheCallerRefusesStopsAllRanksUntouched) {
  StartWorld::Options options;
  options.owner.validate = [](const auto& attributes) {
    return absl::FailedPreconditionError("seed was " + attributes.at("step"));
  };
  const auto before = disk_.Names();
  const auto world = Start(options);
  for (int r = 0; r < world->world(); ++r) {
    EXPECT_TRUE(absl::IsFailedPrecondition(world->result(r).status));
    EXPECT_THAT(world->result(r).status.message(), HasSubstr("seed was 300"));
  }
  EXPECT_EQ(disk_.Names(), before);
}

TEST_F(OwnerSessionTest, ADifferentFingerprintNamesTheRank) {
  StartWorld::Options options;
  options.tweak = [](int rank, OwnerOptions& owner) {
    owner.fingerprint = rank == 2 ? "avx2" : "amx";
  };
  const auto world = Start(options);
  EXPECT_THAT(world->result(3).status.message(),
              HasSubstr("rank 2 (sim1) has fingerprint \"avx2\""));
}

TEST_F(OwnerSessionTest, ARankThatNeverComesIsNamedWithItsHost) {
  StartWorld world(disk_, *layout_, {});
  world.network().Kill(Rank{3});
  world.Run();
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.result(0).status));
  EXPECT_THAT(world.result(0).status.message(),
              HasSubstr("1 of 4 ranks did not say that they are ready within "
                        "2m"));
  EXPECT_THAT(world.result(0).status.message(),
              HasSubstr(": 3 (on node sim1); the job stops"));
  EXPECT_THAT(world.result(1).status.message(), HasSubstr("3 (on node sim1)"));
}

TEST_F(OwnerSessionTest, AReportThatGetsLostEndsTheStartAndNamesTheRank) {
  StartWorld::Options options;
  options.tweak = [](int rank, OwnerOptions& owner) {
    if (rank == 0) owner.load_timeout = absl::Minutes(3);
  };
  StartWorld world(disk_, *layout_, options);
  // The hello comes through, the report does not.
  while (!disk_.power_is_off() && Look().newest_claim < 3) world.Poll();
  world.network().Cut(Rank{2}, Rank{0});
  world.Run();
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.result(0).status));
  EXPECT_THAT(world.result(1).status.message(),
              HasSubstr("did not finish their load within"));
  EXPECT_THAT(world.result(1).status.message(), HasSubstr("2 (on node sim1)"));
  // No seal: the next start finds what was there.
  EXPECT_EQ(Look().seal->incarnation, 2);
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, AStorageThatComesBackIsWaitedFor) {
  SimFault fault;
  fault.process = 2;
  fault.op = SimOp::kRead;
  fault.status = absl::UnavailableError("server is away");
  for (int i = 1; i <= 5; ++i) {
    fault.nth = i;
    disk_.Inject(fault);
  }
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, AStorageThatStaysAwayEndsTheStartAndNamesTheRank) {
  SimFault fault;
  fault.process = 2;
  fault.op = SimOp::kRead;
  fault.from_then_on = true;
  fault.status = absl::UnavailableError("server is away");
  disk_.Inject(fault);
  const auto world = Start();
  for (int r = 0; r < world->world(); ++r) {
    EXPECT_TRUE(absl::IsUnavailable(world->result(r).status))
        << world->result(r).status;
    EXPECT_THAT(world->result(r).status.message(), HasSubstr("rank 2 (sim1)"));
  }
  // Nothing was stepped over.
  disk_.ClearFaults();
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

// The files beside it can be read: it is the manifest, not the storage.
TEST_F(OwnerSessionTest, AManifestOnABadSectorIsSteppedOver) {
  SimFault fault;
  fault.op = SimOp::kGet;
  fault.name_contains = AttemptDir(k300) + "/MANIFEST";
  fault.from_then_on = true;
  fault.status = absl::UnavailableError("I/O error");
  disk_.Inject(fault);
  const auto world = Start();
  EXPECT_EQ(world->LoadedBy(200), "");
  ASSERT_EQ(world->result(0).stepped_over.size(), 1);
  EXPECT_THAT(world->result(0).stepped_over[0].reason, HasSubstr("bad sector"));
}

TEST_F(OwnerSessionTest, AStorageThatHangsEndsTheStartOfAllRanks) {
  for (const int hanging : {0, 2}) {
    SCOPED_TRACE(hanging);
    StartWorld world(disk_, *layout_, {});
    static_cast<SimStorage&>(world.storage(hanging))
        .SetDelay(SimOp::kRead, absl::Hours(1000));
    world.Run();
    for (int r = 0; r < world.world(); ++r) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(world.result(r).status))
          << world.result(r).status;
    }
    EXPECT_THAT(world.result(hanging).status.message(),
                HasSubstr(absl::StrFormat("the storage of rank %d (sim%d) has "
                                          "left",
                                          hanging, hanging / 2)));
    EXPECT_LT(world.clock().Monotonic(), absl::Minutes(30));
  }
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, AFullDiskAtTheClaimLeavesTheRunAsItWas) {
  SimFault fault;
  fault.name_contains = "owners/";
  fault.from_then_on = true;
  fault.status = absl::ResourceExhaustedError("no space");
  fault.op = SimOp::kCreate;
  disk_.Inject(fault);
  const auto world = Start();
  EXPECT_TRUE(absl::IsResourceExhausted(world->result(1).status))
      << world->result(1).status;
  disk_.ClearFaults();
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, ADirectoryThatCannotBeSyncedDoesNotFillWithClaims) {
  SimFault fault;
  fault.name_contains = "owners";
  fault.from_then_on = true;
  fault.status = absl::UnavailableError("sync failed");
  fault.op = SimOp::kSyncDir;
  disk_.Inject(fault);
  const auto world = Start();
  EXPECT_TRUE(absl::IsUnavailable(world->result(1).status))
      << world->result(1).status;
  disk_.ClearFaults();
  EXPECT_LE(Look().claims.size(), 2 + 4u);
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(OwnerSessionTest, OnlyRankZeroTouchesNamesAtAStart) {
  // Rank 2, the first on its host, has tried to write before the claim.
  for (const int process : {1, 3}) {
    for (const SimOp op :
         {SimOp::kCreate, SimOp::kMakeDir, SimOp::kSyncDir, SimOp::kRename,
          SimOp::kLink, SimOp::kRemove, SimOp::kPut, SimOp::kList}) {
      SimFault fault;
      fault.process = process;
      fault.op = op;
      fault.from_then_on = true;
      fault.status = absl::InternalError("this is for rank 0 alone");
      disk_.Inject(fault);
    }
  }
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

// As after a copy of the directories alone, or a cut before its name was
// synced.
TEST_F(OwnerSessionTest, ARunWithoutItsRunIdIsTheRunOfItsCheckpoints) {
  {
    SimStorage storage(disk_, {.process = 80});
    ASSERT_TRUE(Blocking(storage).Remove(kRunIdName).ok());
  }
  StartWorld::Options options;
  options.tweak = [](int, OwnerOptions& owner) { owner.run_id_if_new.fill(9); };
  const auto world = Start(options);
  EXPECT_EQ(world->LoadedBy(300), "") << world->result(0).status;
  EXPECT_EQ(world->result(0).run_id, tests::kTestRun);
  EXPECT_EQ(*Look().run_id, tests::kTestRun);
}

TEST_F(OwnerSessionTest, CheckpointsOfAnotherRunAreNotMadeOnesOwn) {
  {
    SimStorage storage(disk_, {.process = 80});
    Blocking disk(storage);
    Check(disk.Remove(kRunIdName));
    for (const uint32_t i : {1, 2}) {
      Check(disk.Remove(ClaimName(i)));
      Check(disk.Remove(SealName(i)));
    }
  }
  const std::vector<std::string> before = disk_.Names();
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kNever;
  const auto world = Start(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(1).status))
      << world->result(1).status;
  EXPECT_EQ(disk_.Names(), before);
}

// With owners/ lost, the next owner must not take a number whose checkpoints
// are still there: they would count as its own.
TEST_F(OwnerSessionTest, ANumberInCheckpointsIsNotClaimedAgain) {
  {
    SimStorage storage(disk_, {.process = 80});
    Blocking disk(storage);
    for (const uint32_t i : {1, 2}) {
      Check(disk.Remove(ClaimName(i)));
      Check(disk.Remove(SealName(i)));
    }
  }
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kNever;
  const auto world = Start(options);
  ASSERT_TRUE(world->result(0).status.ok()) << world->result(0).status;
  EXPECT_FALSE(world->result(0).loaded.has_value());
  EXPECT_EQ(Look().newest(), nullptr) << "an old checkpoint is offered";
  EXPECT_EQ(world->result(0).incarnation, 3);
}

// With the newest seal the line is gone: the one before would take the run back
// to where that owner began.
TEST_F(OwnerSessionTest, ASealThatIsGoneStopsTheStart) {
  SimStorage storage(disk_, {.process = 92});
  Check(Blocking(storage).Remove(SealName(2)));
  const auto before = disk_.Names();
  const auto world = Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(1).status))
      << world->result(1).status;
  EXPECT_THAT(
      world->result(1).status.message(),
      testing::AllOf(HasSubstr("owners/i0002.seal"), HasSubstr("is not there"),
                     HasSubstr("--resume=STEP")));
  EXPECT_EQ(disk_.Names(), before);
  // A person decides: what is left of the line.
  StartWorld::Options options;
  options.owner.resume = ResumeMode::kStep;
  options.owner.resume_step = 100;
  EXPECT_EQ(Start(options)->LoadedBy(100), "");
  EXPECT_EQ(Look().seal_lost, "");
}

TEST_F(OwnerSessionTest, AClaimWithTheLastNumberStopsTheStart) {
  {
    SimStorage storage(disk_, {.process = 80});
    ASSERT_TRUE(tests::Claim(storage, UINT32_MAX).ok());
  }
  const auto world = Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(1).status))
      << world->result(1).status;
  EXPECT_THAT(world->result(1).status.message(),
              HasSubstr("4294967295 is the last number"));
}

// Directories that others rename while they are listed are found, or the
// reader says that it could not see the run; it never leaves one out.
TEST_F(OwnerSessionTest, ACatalogThatKeepsMovingIsNotTakenForWhole) {
  int moving = 0;
  int whole = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const auto disk = disk_.Clone();
    SimStorage storage(*disk, {.process = 91});
    SimStorage mover(*disk, {.process = 92});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 9;
    CatalogSession session(env);
    tests::SimRandom random(seed, 3);
    const uint64_t often = 1 + random.Below(6);
    uint32_t owner = 2;
    std::string dir = AttemptDir(k300);
    for (session.Poll(); !session.done(); session.Poll()) {
      Completion answer;
      if (storage.Poll({&answer, 1}) > 0) session.OnCompletion(answer);
      clock.Sleep(absl::Milliseconds(100));
      if (random.Below(often * 2) == 0) {
        const std::string to = AdoptedDir(k300, ++owner);
        Check(Blocking(mover).Rename(dir, to));
        dir = to;
      }
    }
    if (!session.result().ok()) {
      EXPECT_TRUE(absl::IsUnavailable(session.result().status()))
          << session.result().status();
      ++moving;
      continue;
    }
    ++whole;
    EXPECT_NE(session.result()->newest(), nullptr);
    EXPECT_EQ(session.result()->newest()->id, k300) << "seed " << seed;
  }
  EXPECT_GT(moving, 0);
  EXPECT_GT(whole, 0);
}

TEST_F(OwnerSessionTest, AJobWhoseRunIsTakenWhileItLoadsDoesNotSeal) {
  SimStorage rival(disk_, {.process = 80});
  int asked = 0;
  StartWorld::Options options;
  options.tweak = [&](int rank, OwnerOptions& owner) {
    if (rank != 0) return;
    owner.validate = [&](const auto&) {
      // Asked before the claim, at the choice and at the load.
      if (++asked == 3) Check(tests::Claim(rival, 4));
      return absl::OkStatus();
    };
  };
  const auto world = Start(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(2).status))
      << world->result(2).status;
  EXPECT_THAT(world->result(2).status.message(),
              HasSubstr("owner i0004 has taken the run"));
  EXPECT_EQ(Look().seal->incarnation, 2);
}

TEST_F(OwnerSessionTest, AnObjectStoreWithoutRenameIsSealedOnly) {
  tests::SimDiskOptions store_options;
  store_options.object_store = true;
  tests::SimDisk store(store_options);
  {
    StartWorld first(store, *layout_, {});
    first.Run();
    ASSERT_TRUE(first.result(0).status.ok()) << first.result(0).status;
    SimStorage storage(store, {.process = 90});
    Write(storage, {100, 1, 1}, 1, std::nullopt);
  }
  StartWorld second(store, *layout_, {});
  second.Run();
  EXPECT_EQ(second.LoadedBy(100), "");
  EXPECT_EQ(second.result(0).seal.line.size(), 1);
}

TEST_F(OwnerSessionTest, AFreshRunTakesItsStateFromAnotherCheckpoint) {
  tests::SimDisk empty({});
  StartWorld::Options options;
  options.init = [this](int rank) {
    return std::make_unique<SimStorage>(
        disk_, tests::SimStorageOptions{.process = 40 + rank});
  };
  options.init_dir = AttemptDir(k200);
  StartWorld world(empty, *layout_, options);
  world.Run();
  EXPECT_EQ(world.LoadedBy(200), "");
  EXPECT_TRUE(world.result(0).loaded->from_init);
  EXPECT_FALSE(world.result(0).seal.head);
}

TEST_F(OwnerSessionTest, OnlyTheWeightsOfAnotherCheckpointOnRequest) {
  tests::SimDisk empty({});
  StartWorld::Options options;
  options.init = [this](int rank) {
    return std::make_unique<SimStorage>(
        disk_, tests::SimStorageOptions{.process = 40 + rank});
  };
  options.init_dir = AttemptDir(k200);
  options.owner.init_weights_only = true;
  StartWorld world(empty, *layout_, options);
  world.Run();
  ASSERT_TRUE(world.result(0).status.ok()) << world.result(0).status;
  // The weight region is right, the others are untouched.
  EXPECT_THAT(world.LoadedBy(200), HasSubstr("of region 1 is 00"));
  EXPECT_THAT(world.LoadedBy(200), Not(HasSubstr("region 0")));
}

}  // namespace
}  // namespace holdfast::ckpt
