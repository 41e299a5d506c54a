// A job loads a checkpoint of another layout: each stored byte is read about
// once by all ranks together, and whatever happens to a reader, a piece or a
// unit, all ranks end alike.

#include "ckpt/session/exchange.h"

#include <functional>
#include <map>

#include "ckpt/session/messages.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/storage/blocking.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/column_layout.h"
#include "tests/support/saved_run.h"
#include "tests/support/start_world.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::SimFault;
using tests::SimOp;
using tests::StartWorld;

constexpr CheckpointId kOld{10, 1, 1};
constexpr CheckpointId kNew{20, 1, 2};

void Check(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

// A run with two checkpoints of `layout`.
class SavedRun {
 public:
  explicit SavedRun(const JobLayout& layout) : disk_(Journaled()) {
    tests::SimStorage storage(disk_, {.process = 90});
    Check(tests::MakeRun(storage));
    Check(tests::Claim(storage, 1));
    OwnerSeal seal;
    seal.incarnation = 1;
    Check(tests::Seal(storage, seal));
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    for (const CheckpointId& id : {kOld, kNew}) {
      if (id != kOld) spec.parent = spec.id;
      spec.id = id;
      spec.commit_number = id.attempt;
      spec.seed = id.step;
      auto manifest = tests::WriteShards(storage, layout, spec, AttemptDir(id));
      Check(manifest.status());
      Check(tests::WriteManifest(storage, AttemptDir(id), *manifest));
      manifest_ = *std::move(manifest);
    }
  }

  tests::SimDisk& disk() { return disk_; }
  // Of the new checkpoint.
  const Manifest& manifest() const { return manifest_; }
  std::string Shard(int file) const {
    return AttemptDir(kNew) + "/" + manifest_.files[file].name;
  }

 private:
  static tests::SimDiskOptions Journaled() {
    tests::SimDiskOptions options;
    options.journaled_names = true;
    return options;
  }
  tests::SimDisk disk_;
  Manifest manifest_;
};

// Small windows, pieces and bounds, so that there are many of each.
StartWorld::Options Sharing(uint64_t seed = 1) {
  StartWorld::Options options;
  options.seed = seed;
  options.owner.exchange.plan.window_bytes = 65536;
  options.owner.exchange.piece_bytes = 16384;
  options.owner.exchange.bytes_max = 65536;
  return options;
}

double Ratio(const StartWorld& world) {
  const OwnerResult& lead = world.result(0);
  uint64_t read = 0;
  uint64_t received = 0;
  for (int r = 0; r < world.world(); ++r) {
    read += world.result(r).bytes_read;
    received += world.result(r).bytes_received;
  }
  EXPECT_EQ(read, lead.job_bytes_read);
  EXPECT_EQ(received, lead.job_bytes_received);
  return 1.0 * read / lead.bytes_stored;
}

TEST(ExchangeTest, EachStoredByteIsReadAboutOnceByTheWholeJob) {
  struct Change {
    std::array<int, 3> from;
    std::array<int, 3> to;
  };
  for (const auto& [from, to] : std::vector<Change>{{{1, 1, 1}, {2, 1, 1}},
                                                    {{2, 1, 1}, {4, 1, 1}},
                                                    {{4, 1, 1}, {8, 1, 1}},
                                                    {{8, 1, 1}, {4, 1, 1}},
                                                    {{8, 1, 1}, {1, 1, 1}},
                                                    {{2, 2, 1}, {2, 1, 1}},
                                                    {{2, 1, 1}, {2, 4, 1}},
                                                    {{1, 1, 3}, {1, 1, 2}},
                                                    {{2, 1, 2}, {4, 2, 1}},
                                                    {{2, 2, 2}, {2, 2, 2}}}) {
    const auto saved_layout = tests::ColumnLayout(from[0], from[1], from[2]);
    const auto layout = tests::ColumnLayout(to[0], to[1], to[2]);
    SCOPED_TRACE(saved_layout->description() + " to " + layout->description());
    SavedRun run(*saved_layout);
    uint64_t stored = 0;
    for (const ShardFile& file : run.manifest().files) stored += file.bytes;
    StartWorld world(run.disk(), *layout, Sharing());
    world.Run();
    ASSERT_EQ(world.LoadedBy(20), "");
    EXPECT_EQ(world.result(0).bytes_stored, stored);
    EXPECT_LE(Ratio(world), 1.1);
    if (to[0] > from[0]) {
      EXPECT_GT(world.result(0).job_bytes_received, stored / 10);
    }
  }
}

TEST(ExchangeTest, WithoutSharingColumnsAreReadByAllWhoWantAPart) {
  SavedRun run(*tests::ColumnLayout(1, 1, 1));
  const auto layout = tests::ColumnLayout(4, 1, 1);
  StartWorld::Options options = Sharing();
  options.owner.share = false;
  StartWorld world(run.disk(), *layout, options);
  world.Run();
  ASSERT_EQ(world.LoadedBy(20), "");
  EXPECT_GT(Ratio(world), 2);
  EXPECT_EQ(world.result(0).job_bytes_received, 0);
}

// --- What may go wrong
// --------------------------------------------------------

// TP1 to TP4: nearly every unit is wanted by all four ranks. It was saved by 8
// ranks, so that there are many.
class SharedLoadTest : public testing::Test {
 protected:
  // Until rank `rank` of a job has the first bytes of its load.
  static void RunUntilLoading(StartWorld& world, int rank) {
    while (world.progress(rank).bytes_done == 0) ASSERT_TRUE(world.Poll());
    ASSERT_LT(world.progress(rank).bytes_done * 2,
              world.progress(rank).bytes_total);
  }

  SavedRun run_{*tests::ColumnLayout(1, 1, 8)};
  std::unique_ptr<TrainLayout> layout_ = tests::ColumnLayout(4, 1, 1);
};

TEST_F(SharedLoadTest, DamageInASharedUnitTakesAllRanksBackAtOnce) {
  const ShardFile& file = run_.manifest().files[0];
  for (const uint64_t at : {file.bytes / 5, file.bytes / 2}) {
    SavedRun run(*tests::ColumnLayout(1, 1, 8));
    run.disk().FlipBit(run.Shard(0), at, 3);
    StartWorld world(run.disk(), *layout_, Sharing(at));
    world.Run();
    EXPECT_EQ(world.LoadedBy(10), "");
    for (int r = 0; r < world.world(); ++r) {
      ASSERT_EQ(world.result(r).stepped_over.size(), 1);
      EXPECT_EQ(world.result(r).stepped_over[0].checkpoint.id, kNew);
      EXPECT_THAT(world.result(r).stepped_over[0].reason,
                  AllOf(HasSubstr("shard-00000.hf, offset "),
                        HasSubstr("of 'layers."), HasSubstr("crc32c is")));
    }
    // Nobody waited for pieces that will not come.
    EXPECT_LT(world.clock().Monotonic(), absl::Seconds(20));
  }
}

TEST_F(SharedLoadTest, ARankThatCannotReadEndsTheTryForAllAtOnce) {
  SimFault fault;
  fault.process = 2;
  fault.op = SimOp::kRead;
  fault.name_contains = "shard-";
  fault.from_then_on = true;
  fault.status = absl::UnavailableError("server is away");
  run_.disk().Inject(fault);
  StartWorld world(run_.disk(), *layout_, Sharing());
  world.Run();
  for (int r = 0; r < world.world(); ++r) {
    EXPECT_TRUE(absl::IsUnavailable(world.result(r).status))
        << world.result(r).status;
    EXPECT_THAT(world.result(r).status.message(),
                AllOf(HasSubstr("rank 2 (sim1)"), HasSubstr("away")));
  }
  // Three tries, none of which waited for silence.
  EXPECT_LT(world.clock().Monotonic(), absl::Seconds(60));
}

TEST_F(SharedLoadTest, AReaderThatDiesInTheMiddleIsNamed) {
  StartWorld world(run_.disk(), *layout_, Sharing());
  RunUntilLoading(world, 1);
  run_.disk().Kill(2);
  world.Run();
  for (const int r : {0, 1, 3}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(world.result(r).status))
        << world.result(r).status;
    EXPECT_THAT(world.result(r).status.message(),
                HasSubstr("1 of 4 ranks did not finish their load"));
    EXPECT_THAT(world.result(r).status.message(),
                HasSubstr(": 2 (on node sim1)"));
  }
}

// Cuts the way from rank 1 to rank 3 for a moment: what is lost is missed by
// number, or by silence.
TEST_F(SharedLoadTest, AfterALostPieceEachRankReadsAlone) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    StartWorld world(run_.disk(), *layout_, Sharing(seed));
    RunUntilLoading(world, 3);
    world.network().Cut(Rank{1}, Rank{3});
    for (int i = 0; i < 40; ++i) world.Poll();
    world.network().Heal(Rank{1}, Rank{3});
    world.Run();
    ASSERT_EQ(world.LoadedBy(20), "");
    // By the receiver, or by the sender that hears nothing more of it.
    EXPECT_THAT(world.result(0).notes,
                testing::Contains(AllOf(HasSubstr("exchanging what was read"),
                                        HasSubstr("rank 3 (sim1)"),
                                        HasSubstr("rank 1 (sim0)"))));
    EXPECT_THAT(world.result(0).notes,
                testing::Contains(HasSubstr("each rank reads alone")));
    EXPECT_LT(world.clock().Monotonic(), absl::Minutes(5));
  }
}

TEST_F(SharedLoadTest, ALinkThatIsCutForGoodCostsOneTry) {
  for (const auto& [from, to] :
       std::vector<std::pair<int, int>>{{1, 3}, {3, 1}, {2, 1}}) {
    StartWorld world(run_.disk(), *layout_, Sharing(from));
    RunUntilLoading(world, 1);
    world.network().Cut(Rank{from}, Rank{to});
    world.Run();
    ASSERT_EQ(world.LoadedBy(20), "");
    EXPECT_FALSE(world.result(0).notes.empty());
    EXPECT_LT(world.clock().Monotonic(), absl::Minutes(8));
  }
}

TEST_F(SharedLoadTest, ALateWordDoesNotEndATryThatItIsNotOf) {
  int second_tries = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    StartWorld::Options options = Sharing(seed);
    // Some messages come after their try has been given up.
    options.network.late_share = 0.01;
    options.network.late_delay = absl::Seconds(70);
    options.owner.exchange.silence = absl::Seconds(40);
    StartWorld world(run_.disk(), *layout_, options);
    world.Run();
    EXPECT_EQ(world.LoadedBy(20), "") << seed;
    second_tries += !world.result(0).notes.empty();
  }
  EXPECT_GT(second_tries, 0);
}

TEST_F(SharedLoadTest, WithTheWeightsAloneOnlyTheyAreExchanged) {
  tests::SimDisk fresh({});
  StartWorld::Options options = Sharing();
  options.owner.init_weights_only = true;
  options.init = [&](int rank) {
    return std::make_unique<tests::SimStorage>(
        run_.disk(), tests::SimStorageOptions{.process = 50 + rank});
  };
  options.init_dir = AttemptDir(kNew);
  StartWorld world(fresh, *layout_, options);
  world.Run();
  uint64_t wanted = 0;
  for (int r = 0; r < world.world(); ++r) {
    ASSERT_TRUE(world.result(r).status.ok()) << world.result(r).status;
    ASSERT_TRUE(world.result(r).loaded);
    wanted += world.result(r).bytes_wanted;
  }
  const OwnerResult& lead = world.result(0);
  EXPECT_GT(lead.job_bytes_received, lead.bytes_stored / 4);
  EXPECT_LE(lead.job_bytes_read, 1.1 * lead.bytes_stored + 8 * 4 * 12288);
  EXPECT_GE(wanted, lead.bytes_stored);
}

}  // namespace
}  // namespace holdfast::ckpt
