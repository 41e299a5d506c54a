// The exchange of pieces by itself, message by message: memory, waiting,
// spoiled and missing pieces.

#include <functional>
#include <map>

#include "ckpt/session/exchange.h"
#include "ckpt/session/messages.h"
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

void Check(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

// Rank 0 reads the only file, which both ranks want a column half of.
class TwoRanks : public testing::Test {
 protected:
  static constexpr uint64_t kPiece = 16384;

  TwoRanks() : network_(2, clock_, {.delay_max = absl::Microseconds(20)}) {
    tests::SimDisk disk({});
    tests::SimStorage storage(disk, {.process = 1});
    tests::CheckpointSpec spec;
    spec.id = {20, 1, 2};
    auto manifest = tests::WriteShards(storage, *tests::ColumnLayout(1, 1, 1),
                                       spec, "here");
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
  std::unique_ptr<TrainLayout> layout_ = tests::ColumnLayout(2, 1, 1);
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
  spec.id = {20, 1, 2};
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
