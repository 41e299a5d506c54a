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

// A decoder of 4 layers, 4 MB of state, two thirds of it cut by columns.
std::unique_ptr<TrainLayout> Layout(int tp, int pp, int dp) {
  constexpr int64_t kHidden = 64, kFfn = 512;
  std::vector<TensorSpec> tensors;
  for (int layer = 0; layer < 4; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape,
                         int tp_dimension) {
      tensors.push_back({.name = absl::StrFormat("layers.%d.%s", layer, name),
                         .shape = std::move(shape),
                         .tp_dimension = tp_dimension,
                         .layer = layer});
    };
    add("norm", {kHidden}, -1);
    add("up_proj", {kFfn, kHidden}, 0);
    add("down_proj", {kHidden, kFfn}, 1);
    add("o_proj", {kHidden, kFfn}, 1);
  }
  TrainLayoutOptions options;
  options.mesh = {.tp = tp, .pp = pp, .dp = dp};
  options.stages = *EvenStages(4, pp, 0, 0);
  auto layout = TrainLayout::Create(std::move(tensors), options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

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
    const auto saved_layout = Layout(from[0], from[1], from[2]);
    const auto layout = Layout(to[0], to[1], to[2]);
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
  SavedRun run(*Layout(1, 1, 1));
  const auto layout = Layout(4, 1, 1);
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

  SavedRun run_{*Layout(1, 1, 8)};
  std::unique_ptr<TrainLayout> layout_ = Layout(4, 1, 1);
};

TEST_F(SharedLoadTest, DamageInASharedUnitTakesAllRanksBackAtOnce) {
  const ShardFile& file = run_.manifest().files[0];
  for (const uint64_t at : {file.bytes / 5, file.bytes / 2}) {
    SavedRun run(*Layout(1, 1, 8));
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

// --- One exchange, by hand
// ----------------------------------------------------

// Rank 0 reads the only file, which both ranks want a column half of.
class TwoRanks : public testing::Test {
 protected:
  static constexpr uint64_t kPiece = 16384;

  TwoRanks() : network_(2, clock_, {.delay_max = absl::Microseconds(20)}) {
    tests::SimDisk disk({});
    tests::SimStorage storage(disk, {.process = 1});
    tests::CheckpointSpec spec;
    spec.id = kNew;
    auto manifest = tests::WriteShards(storage, *Layout(1, 1, 1), spec, "here");
    Check(manifest.status());
    manifest_ = *std::move(manifest);
    contents_ = *Blocking(storage).Get("here/shard-00000.hf", 1 << 30);
    ExchangeOptions options;
    options.piece_bytes = kPiece;
    options.bytes_max = 4 * kPiece;
    options.silence = absl::Seconds(100);
    for (int r = 0; r < 2; ++r) {
      groups_.push_back(network_.Open(Rank{r}));
      auto plan = PlanShare(manifest_, layout_->items(), 2, Rank{r},
                            [&](Rank rank) { return layout_->WantedBy(rank); },
                            {.window_bytes = uint64_t{1} << 30});
      Check(plan.status());
      plans_[r] = *std::move(plan);
      reads_.push_back(std::make_unique<SharedReads>(plans_[r]));
      holdings_.push_back(layout_->WantedBy(Rank{r}));
      memory_.push_back(std::make_unique<tests::JobMemory>(holdings_[r]));
      exchanges_.push_back(std::make_unique<Exchange>(
          groups_[r].get(), &clock_, MessageTag{1, 1, 0}, options));
    }
    reader_ = plans_[0].reads.empty() ? 1 : 0;
    receiver_ = 1 - reader_;
  }

  void Begin(int r) {
    exchanges_[r]->Begin(&plans_[r], reads_[r].get(), memory_[r]->spans());
  }
  // The whole file, as the reader's loader gives it, in units of 64 KiB.
  void TakeAll() {
    const ShardFile& file = manifest_.files[0];
    const uint64_t end = file.data_end();
    while (at_ < end && exchanges_[reader_]->has_room()) {
      const uint64_t size = std::min<uint64_t>(65536, end - at_);
      exchanges_[reader_]->Take(0, at_,
                                std::span(contents_).subspan(at_, size));
      at_ += size;
    }
    if (at_ == end) exchanges_[reader_]->EndReads();
  }
  // One message to each rank, changed or dropped by `change`.
  void Deliver(const std::function<bool(Message&)>& change = nullptr) {
    for (int r = 0; r < 2; ++r) {
      auto message = groups_[r]->Poll();
      if (message && (!change || change(*message))) {
        exchanges_[r]->OnMessage(*message);
      }
      exchanges_[r]->Poll();
    }
    clock_.Sleep(absl::Microseconds(30));
  }
  uint64_t wanted() const { return plans_[receiver_].own.bytes_wanted; }

  tests::SimClock clock_;
  tests::SimNetwork network_;
  std::unique_ptr<TrainLayout> layout_ = Layout(2, 1, 1);
  Manifest manifest_;
  std::vector<std::byte> contents_;
  std::vector<std::unique_ptr<Group>> groups_;
  SharePlan plans_[2];
  std::vector<std::unique_ptr<SharedReads>> reads_;
  std::vector<Holding> holdings_;
  std::vector<std::unique_ptr<tests::JobMemory>> memory_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  int reader_ = 0;
  int receiver_ = 1;
  uint64_t at_ = kShardBlockBytes;
};

TEST_F(TwoRanks, AllThatIsWantedComesIntoPlace) {
  Begin(0);
  Begin(1);
  for (int i = 0; i < 100'000 && !exchanges_[receiver_]->all_ended(); ++i) {
    TakeAll();
    Deliver();
  }
  EXPECT_TRUE(exchanges_[receiver_]->status().ok());
  EXPECT_EQ(exchanges_[receiver_]->bytes_received(), wanted());
  EXPECT_EQ(memory_[receiver_]->Differs(*layout_, holdings_[receiver_], 0), "");
}

TEST_F(TwoRanks, AReaderThatIsFasterThanItsReceiverWaits) {
  Begin(reader_);
  // The receiver has not begun: it answers nothing.
  for (int i = 0; i < 1000; ++i) {
    TakeAll();
    Deliver();
  }
  EXPECT_FALSE(exchanges_[reader_]->has_room());
  EXPECT_LT(at_, manifest_.files[0].data_end() / 2);
  // The bound, what is under way, and one read.
  EXPECT_LE(exchanges_[reader_]->bytes_held_most(),
            (4 + 4 + 4) * (kPiece + 64));
  Begin(receiver_);
  for (int i = 0; i < 100'000 && !exchanges_[receiver_]->all_ended(); ++i) {
    TakeAll();
    Deliver();
  }
  EXPECT_EQ(exchanges_[receiver_]->bytes_received(), wanted());
}

TEST_F(TwoRanks, AReceiverThatTakesNothingIsNamedByItsReader) {
  Begin(reader_);
  TakeAll();
  while (exchanges_[reader_]->status().ok()) {
    Deliver();
    clock_.Sleep(absl::Seconds(1));
    ASSERT_LT(clock_.Monotonic(), absl::Seconds(150));
  }
  EXPECT_THAT(exchanges_[reader_]->status().message(),
              AllOf(HasSubstr(absl::StrFormat("rank %d (sim0) has taken 0 of ",
                                              receiver_)),
                    HasSubstr("none for 1m4")));
  EXPECT_TRUE(exchanges_[reader_]->at_fault());
}

TEST_F(TwoRanks, AReaderThatIsStillReadingIsWaitedForAndASilentOneIsNamed) {
  Begin(0);
  Begin(1);
  // A read each 30 s: nobody gives up, for longer than the silence allowed.
  while (clock_.Monotonic() < absl::Seconds(400)) {
    if (at_ < 3 * 65536) TakeAll();
    clock_.Sleep(absl::Seconds(30));
    exchanges_[reader_]->Take(
        0, (uint64_t{1} << 30) + at_++ * 4096,
        std::span(contents_).first(1));  // a read that nobody else wants
    for (int i = 0; i < 20; ++i) Deliver();
    ASSERT_TRUE(exchanges_[receiver_]->status().ok())
        << exchanges_[receiver_]->status();
  }
  while (exchanges_[receiver_]->status().ok()) {
    Deliver();
    clock_.Sleep(absl::Seconds(1));
    ASSERT_LT(clock_.Monotonic(), absl::Seconds(700));
  }
  EXPECT_THAT(exchanges_[receiver_]->status().message(),
              AllOf(HasSubstr(absl::StrFormat("rank %d (sim0) reads for this "
                                              "rank; ",
                                              reader_)),
                    HasSubstr("nothing for 2m3")));
}

// --- One reader, many receivers
// -----------------------------------------------

// All ranks want all of it.
class WholeJob final : public JobLayout {
 public:
  explicit WholeJob(int ranks) : ranks_(ranks) {}
  int world() const override { return ranks_; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override {
    Holding holding = WantedBy(rank);
    if (rank != Rank{0}) holding.fragments.clear();
    return holding;
  }
  Holding WantedBy(Rank) const override {
    const Box whole = WholeBox(items_[0].shape);
    Fragment all{.item = 0, .part = whole, .count = whole.elements()};
    return {.region_bytes = {uint64_t{4} << 18}, .fragments = {all}};
  }
  std::string description() const override { return "whole"; }

 private:
  const int ranks_;
  const std::vector<ItemSpec> items_{{.name = "w",
                                      .kind = "weight",
                                      .dtype = DType::kF32,
                                      .shape = {1 << 18}}};
};

TEST(ManyReceivers, CostTheirReaderNoMoreMemoryThanOne) {
  constexpr int kRanks = 41;
  constexpr uint64_t kRead = 65536;
  const WholeJob job(kRanks);
  tests::SimDisk disk({});
  tests::SimStorage storage(disk, {.process = 1});
  tests::CheckpointSpec spec;
  spec.id = kNew;
  const auto manifest = tests::WriteShards(storage, WholeJob(1), spec, "here");
  Check(manifest.status());
  const auto contents = *Blocking(storage).Get("here/shard-00000.hf", 1 << 30);

  tests::SimClock clock;
  tests::SimNetwork network(kRanks, clock, {});
  ExchangeOptions options;
  options.piece_bytes = 16384;
  options.bytes_max = 65536;
  struct Party {
    std::unique_ptr<Group> group;
    SharePlan plan;
    std::unique_ptr<SharedReads> reads;
    std::unique_ptr<tests::JobMemory> memory;
    std::unique_ptr<Exchange> exchange;
  };
  std::vector<Party> all(kRanks);
  const Holding wanted = job.WantedBy(Rank{0});
  int reader = -1;
  for (int r = 0; r < kRanks; ++r) {
    Party& party = all[r];
    party.group = network.Open(Rank{r});
    auto plan = PlanShare(*manifest, job.items(), kRanks, Rank{r},
                          [&](Rank rank) { return job.WantedBy(rank); },
                          {.window_bytes = uint64_t{1} << 30});
    Check(plan.status());
    party.plan = *std::move(plan);
    if (!party.plan.reads.empty()) reader = r;
    party.reads = std::make_unique<SharedReads>(party.plan);
    party.memory = std::make_unique<tests::JobMemory>(wanted);
    party.exchange = std::make_unique<Exchange>(party.group.get(), &clock,
                                                MessageTag{1, 1, 0}, options);
    party.exchange->Begin(&party.plan, party.reads.get(),
                          party.memory->spans());
  }
  ASSERT_EQ(all[reader].plan.receivers.size(), kRanks - 1);

  const uint64_t end = manifest->files[0].data_end();
  uint64_t at = kShardBlockBytes;
  const auto ended = [&] {
    return std::all_of(all.begin(), all.end(), [](const Party& party) {
      return party.exchange->all_ended();
    });
  };
  Exchange& from = *all[reader].exchange;
  for (int i = 0; i < 100'000 && !ended(); ++i) {
    if (at < end && from.has_room()) {
      const uint64_t size = std::min(kRead, end - at);
      from.Take(0, at, std::span(contents).subspan(at, size));
      at += size;
      if (at == end) from.EndReads();
    }
    for (Party& party : all) {
      if (auto message = party.group->Poll()) {
        party.exchange->OnMessage(*message);
      }
      party.exchange->Poll();
      ASSERT_TRUE(party.exchange->status().ok()) << party.exchange->status();
    }
    clock.Sleep(absl::Microseconds(30));
  }
  for (int r = 0; r < kRanks; ++r) {
    if (r == reader) continue;
    EXPECT_EQ(all[r].exchange->bytes_received(), 1 << 20);
    EXPECT_EQ(all[r].memory->Differs(job, wanted, 0), "") << r;
  }
  // What waits, one read more, and what is under way.
  EXPECT_LE(from.bytes_held_most(), 3 * (65536 + 4 * 64));
}

struct Spoiled {
  const char* what;
  std::function<bool(Message&)>
      change;  // of the third piece; false: it is lost
  const char* says;
};

class SpoiledPiece : public TwoRanks,
                     public testing::WithParamInterface<Spoiled> {};

TEST_P(SpoiledPiece, IsRefusedAndItsSenderNamed) {
  Begin(0);
  Begin(1);
  int pieces = 0;
  for (int i = 0; i < 20'000 && exchanges_[receiver_]->status().ok(); ++i) {
    TakeAll();
    Deliver([&](Message& message) {
      if (message.tag.phase != kPhasePiece || ++pieces != 3) return true;
      return GetParam().change(message);
    });
  }
  EXPECT_THAT(exchanges_[receiver_]->status().message(),
              AllOf(HasSubstr(absl::StrFormat("rank %d (sim0)", reader_)),
                    HasSubstr(GetParam().says)));
  EXPECT_TRUE(exchanges_[receiver_]->at_fault());
  EXPECT_LT(exchanges_[receiver_]->bytes_received(), wanted());
}

INSTANTIATE_TEST_SUITE_P(
    Each, SpoiledPiece,
    testing::Values(Spoiled{"AFlippedBit",
                            [](Message& m) {
                              m.body[100] ^= std::byte{4};
                              return true;
                            },
                            "has crc32c"},
                    Spoiled{
                        "Lost", [](Message&) { return false; },
                        "sent piece 4, and 2 pieces had come: one got lost"},
                    Spoiled{"CutShort",
                            [](Message& m) {
                              m.body.resize(20);
                              return true;
                            },
                            "malformed"}),
    [](const auto& info) { return std::string(info.param.what); });

}  // namespace
}  // namespace holdfast::ckpt
