// What a start tries before it takes the run, and what it refuses.

#include "ckpt/session/preflight.h"

#include <memory>
#include <string>
#include <vector>

#include "ckpt/session/save_plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using tests::SimDisk;
using tests::SimFault;
using tests::SimOp;
using tests::SimStorage;
using tests::StartWorld;

class PreflightTest : public StartTest {
 protected:
  // Every rank has the plans of `layout_`.
  StartWorld::Options WithPlans() {
    StartWorld::Options options;
    options.tweak = [this](int rank, OwnerOptions& owner) {
      plans_.push_back(std::make_unique<SavePlans>(layout_.get(), Rank{rank}));
      owner.plans = plans_.back().get();
      owner.keep_last = 4;
    };
    return options;
  }
  uint64_t BytesOfASave() const {
    SavePlans plans(layout_.get(), Rank{0});
    while (plans.PlanNext()) {
    }
    return plans.TotalBytes();
  }
  uint64_t Used() const {
    uint64_t free = 0;
    Check(disk_.DoFreeSpace(".", &free));
    return UINT64_MAX - free;
  }
  // Every rank stopped with this, and the run is as it was.
  void ExpectRefused(const StartWorld& world, absl::StatusCode code,
                     const std::string& text) {
    for (int r = 0; r < world.world(); ++r) {
      EXPECT_EQ(world.result(r).status.code(), code) << world.result(r).status;
      EXPECT_THAT(world.result(r).status.message(), HasSubstr(text));
    }
    EXPECT_EQ(disk_.Names(), before_);
  }

  std::vector<std::unique_ptr<SavePlans>> plans_;
  const std::vector<std::string> before_ = disk_.Names();
};

TEST_F(PreflightTest, ARankThatSeesAnotherDirectoryIsNamedAndNothingIsChanged) {
  SimDisk elsewhere({});
  StartWorld::Options options;
  options.wrap = [&](int rank, Storage&) -> std::unique_ptr<Storage> {
    if (rank != 2) return nullptr;
    return std::make_unique<SimStorage>(elsewhere,
                                        tests::SimStorageOptions{.process = 7});
  };
  const auto world = Start(options);
  ExpectRefused(*world, absl::StatusCode::kFailedPrecondition,
                "rank 2 (sim1) does not see what rank 0 wrote into the run "
                "directory: reading checkpoints/preflight.");
  EXPECT_THAT(world->result(3).status.message(),
              HasSubstr("not one directory that all ranks share"));
  EXPECT_TRUE(elsewhere.Names().empty());
}

TEST_F(PreflightTest, ACopyOfTheRunIsNotTheRunEither) {
  // The same run.id, the same checkpoints.
  const auto copy = disk_.Clone();
  StartWorld::Options options;
  options.wrap = [&](int rank, Storage&) -> std::unique_ptr<Storage> {
    if (rank < 2) return nullptr;
    return std::make_unique<SimStorage>(
        *copy, tests::SimStorageOptions{.process = 7 + rank});
  };
  const auto world = Start(options);
  ExpectRefused(*world, absl::StatusCode::kFailedPrecondition,
                "(2 ranks in all: 2, 3 (all on node sim1))");
}

TEST_F(PreflightTest, AHostThatCannotWriteIsNamedAndLeavesNothing) {
  for (const SimOp op : {SimOp::kCreate, SimOp::kWrite, SimOp::kSync}) {
    SimFault fault;
    fault.process = 2;
    fault.op = op;
    fault.name_contains = "preflight";
    fault.from_then_on = true;
    fault.status = absl::PermissionDeniedError("read-only file system");
    disk_.Inject(fault);
    const auto world = Start();
    ExpectRefused(*world, absl::StatusCode::kPermissionDenied,
                  "before the start: rank 2 (sim1) trying to ");
    EXPECT_THAT(world->result(0).status.message(),
                HasSubstr("read-only file system"));
    disk_.ClearFaults();
  }
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

TEST_F(PreflightTest, RankZeroThatCannotWriteSaysSo) {
  SimFault fault;
  fault.process = 0;
  fault.op = SimOp::kCreate;
  fault.status = absl::ResourceExhaustedError("no space");
  disk_.Inject(fault);
  const auto world = Start();
  ExpectRefused(*world, absl::StatusCode::kResourceExhausted,
                "before the start: rank 0 (sim0): ");
  EXPECT_THAT(world->result(3).status.message(), HasSubstr("no space"));
}

TEST_F(PreflightTest, OneRankOfEachHostWritesAndItsFilesAreGone) {
  const auto world = Start();
  EXPECT_EQ(world->LoadedBy(300), "");
  // Create, write, sync, remove.
  EXPECT_EQ(disk_.faults().ops_of(2), 4);
  EXPECT_EQ(disk_.faults().ops_of(1), 0);
  EXPECT_EQ(disk_.faults().ops_of(3), 0);
  EXPECT_THAT(disk_.Names(), Each(Not(HasSubstr("preflight"))));
}

TEST_F(PreflightTest, ANewRunIsTriedInItsOwnDirectory) {
  SimDisk empty({});
  StartWorld::Options options;
  SimFault fault;
  fault.process = 2;
  fault.op = SimOp::kWrite;
  fault.status = absl::PermissionDeniedError("no");
  empty.Inject(fault);
  StartWorld world(empty, *layout_, options);
  world.Run();
  EXPECT_TRUE(absl::IsPermissionDenied(world.result(0).status));
  EXPECT_TRUE(empty.Names().empty());
}

TEST_F(PreflightTest, ARankThatNeverAnswersIsNamed) {
  StartWorld world(disk_, *layout_, {});
  while (disk_.faults().ops_of(0) == 0) world.Poll();
  world.network().Cut(Rank{3}, Rank{0});
  world.Run();
  ExpectRefused(world, absl::StatusCode::kDeadlineExceeded,
                "1 of 4 ranks did not look at the run directory within 2m");
  EXPECT_THAT(world.result(1).status.message(), HasSubstr("3 (on node sim1)"));
}

TEST_F(PreflightTest, ASaveThatCannotFitStopsTheJob) {
  disk_.LimitSpace(Used() + BytesOfASave() - 1);
  ExpectRefused(*Start(WithPlans()), absl::StatusCode::kResourceExhausted,
                "not one would fit");
}

TEST_F(PreflightTest, SpaceForFewerSavesThanAreKeptIsAWarning) {
  // Three are there and four are kept: one more, and one in the making.
  disk_.LimitSpace(Used() + 2 * BytesOfASave() - 1);
  const auto tight = Start(WithPlans());
  EXPECT_EQ(tight->LoadedBy(300), "");
  EXPECT_THAT(tight->result(0).notes,
              testing::ElementsAre(
                  HasSubstr("checkpoint.keep_last = 4 needs room for 2 more")));
  disk_.LimitSpace(Used() + 2 * BytesOfASave() + 100'000);
  EXPECT_TRUE(Start(WithPlans())->result(0).notes.empty());
}

TEST_F(PreflightTest, ARankWithAnotherPlanIsNamed) {
  const auto other = tests::SmallLayout(1, 2, 2);
  StartWorld::Options options = WithPlans();
  const auto usual = options.tweak;
  std::unique_ptr<SavePlans> wrong;
  options.tweak = [&](int rank, OwnerOptions& owner) {
    usual(rank, owner);
    if (rank != 3) return;
    wrong = std::make_unique<SavePlans>(other.get(), Rank{3});
    owner.plans = wrong.get();
  };
  ExpectRefused(*Start(options), absl::StatusCode::kFailedPrecondition,
                "rank 3 (sim1) would save by another plan");
}

TEST_F(PreflightTest, ARankWithOtherSaveOptionsIsNamed) {
  StartWorld::Options options;
  options.tweak = [](int rank, OwnerOptions& owner) {
    owner.save_options = rank == 1 ? "files_per_dir=4" : "files_per_dir=8";
  };
  ExpectRefused(*Start(options), absl::StatusCode::kFailedPrecondition,
                "rank 1 (sim0) would save with \"files_per_dir=4\", rank 0 "
                "(sim0) with \"files_per_dir=8\"");
}

TEST(CheckSpaceTest, CountsWhatIsKeptAndWhatIsThere) {
  struct Case {
    uint64_t free;
    int64_t there;
    bool fits;
    bool warns;
  };
  for (const Case& c : std::vector<Case>{{99, 0, false, false},
                                         {100, 0, true, true},
                                         {399, 0, true, true},
                                         {400, 0, true, false},
                                         {199, 2, true, true},
                                         {200, 2, true, false},
                                         {100, 3, true, false},
                                         {100, 9, true, false},
                                         {99, 9, false, false}}) {
    std::string warning;
    const absl::Status fits = CheckSpace(c.free, 100, 3, c.there, &warning);
    EXPECT_EQ(fits.ok(), c.fits) << c.free << " " << c.there;
    EXPECT_EQ(!warning.empty(), c.warns) << c.free << " " << c.there;
  }
}

TEST(PreflightMessageTest, ComesBackAsItWas) {
  const PreflightMessage message{"checkpoints", "checkpoints/preflight.1",
                                 "holdfast"};
  const auto decoded = DecodePreflight(Encode(message));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->dir, message.dir);
  EXPECT_EQ(decoded->name, message.name);
  EXPECT_EQ(decoded->nonce, message.nonce);
  const auto report = DecodePreflightReport(
      Encode(PreflightReport{absl::DataLossError("x"), true}));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->status, absl::DataLossError("x"));
  EXPECT_TRUE(report->direct_io);
  std::vector<std::byte> cut = Encode(message);
  cut.pop_back();
  EXPECT_FALSE(DecodePreflight(cut).ok());
}

}  // namespace
}  // namespace holdfast::ckpt
