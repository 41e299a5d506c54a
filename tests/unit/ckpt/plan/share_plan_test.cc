// A whole job loads, in memory: every rank reads what its share plan says,
// packs what others want of it, and unpacks what it gets. Each unit is read
// once, and each rank ends with what it wanted.

#include "ckpt/plan/share_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/layout/full_size.h"
#include "tests/unit/ckpt/layout/sample_layouts.h"
#include "tests/unit/ckpt/plan/memory_job.h"
#include "tests/unit/ckpt/plan/rows_job.h"

namespace holdfast::ckpt {
namespace {

std::vector<Unit> UnitsOf(const Bytes& file) {
  const auto footer = DecodeShardFooter(std::span(file).last(4096));
  HF_CHECK(footer.ok(), "%s", footer.status().ToString());
  auto units = DecodeShardIndex(
      std::span(file).subspan(footer->index_offset,
                              ShardIndexBytes(footer->unit_count)),
      footer->unit_count);
  HF_CHECK(units.ok(), "%s", units.status().ToString());
  std::sort(units->begin(), units->end(),
            [](const Unit& a, const Unit& b) { return a.offset < b.offset; });
  return *std::move(units);
}

struct Loaded {
  uint64_t bytes_read = 0;  // units
  uint64_t bytes_sent = 0;
  int meetings = 0;  // of a sender and a receiver
};

// All ranks of `layout` load `saved`.
void LoadJob(const SavedJob& saved, const JobLayout& layout,
             const ShareOptions& options, uint64_t read_bytes_max,
             Loaded* loaded) {
  const auto wanted_by = [&](Rank rank) { return layout.WantedBy(rank); };
  std::vector<std::vector<Bytes>> memory;
  std::vector<SharePlan> plans;
  std::vector<uint64_t> put(layout.world());
  for (int r = 0; r < layout.world(); ++r) {
    memory.push_back(ZeroMemory(layout.WantedBy(Rank{r})));
    auto plan = PlanShare(saved.manifest, layout.items(), layout.world(),
                          Rank{r}, wanted_by, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plans.push_back(*std::move(plan));
  }
  const auto regions = [&](int rank) {
    return std::vector<std::span<std::byte>>(memory[rank].begin(),
                                             memory[rank].end());
  };
  std::set<std::pair<uint32_t, uint64_t>> read_units;
  for (int r = 0; r < layout.world(); ++r) {
    const SharePlan& plan = plans[r];
    const SharedReads reads(plan);
    for (const uint32_t f : reads.files()) {
      const Bytes& file = saved.files[f];
      const std::vector<Unit> units = UnitsOf(file);
      for (const UnitRead& read : reads.UnitsToRead(f, units, read_bytes_max)) {
        for (uint32_t u = 0; u < read.unit_count; ++u) {
          ASSERT_TRUE(read_units.insert({f, read.first_unit + u}).second)
              << "unit " << read.first_unit + u << " of file " << f
              << " is read again, by rank " << r;
        }
        loaded->bytes_read += read.bytes;
        const auto bytes =
            std::span<const std::byte>(file).subspan(read.offset, read.bytes);
        put[r] += reads.own().ScatterBytes(f, read.offset, bytes, regions(r));
        for (size_t i = 0; i < plan.receivers.size(); ++i) {
          const int to = Index(plan.receivers[i].rank);
          std::vector<std::byte> packed;
          reads.receivers()[i].AppendPacked(f, read.offset, bytes, &packed);
          if (packed.empty()) continue;
          const Scatter theirs(plans[to].own);
          const uint64_t end = read.offset + read.bytes;
          ASSERT_EQ(theirs.PackedBytes(f, read.offset, end), packed.size());
          theirs.ScatterPacked(f, read.offset, end, packed, regions(to));
          put[to] += packed.size();
          loaded->bytes_sent += packed.size();
        }
      }
    }
    // Both sides know of each other.
    for (const SharePlan::Receiver& receiver : plan.receivers) {
      ++loaded->meetings;
      EXPECT_THAT(plans[Index(receiver.rank)].senders,
                  testing::Contains(Rank{r}));
    }
    for (const Rank sender : plan.senders) {
      EXPECT_THAT(plans[Index(sender)].receivers,
                  testing::Contains(
                      testing::Field(&SharePlan::Receiver::rank, Rank{r})));
    }
  }
  for (int r = 0; r < layout.world(); ++r) {
    ASSERT_EQ(put[r], plans[r].own.bytes_wanted) << "rank " << r;
    ASSERT_EQ(memory[r], FilledMemory(layout.items(), layout.WantedBy(Rank{r})))
        << "rank " << r;
  }
}

uint64_t DataBytes(const SavedJob& saved) {
  uint64_t bytes = 0;
  for (const ShardFile& file : saved.manifest.files) {
    bytes +=
        file.bytes - 2 * kShardBlockBytes - ShardIndexBytes(file.unit_count);
  }
  return bytes;
}

TEST(SharePlanTest, EachStoredByteIsReadOnceWhateverTheTwoLayouts) {
  const std::vector<SampleLayout> samples = SampleLayouts();
  // Windows below a unit, of some units, and above any file.
  const uint64_t windows[] = {4096, 65536, uint64_t{4} << 20};
  const uint64_t reads[] = {12288, uint64_t{4} << 20, 4096};
  int pairs = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].tp * samples[i].pp * samples[i].dp > 48) continue;
    std::optional<SavedJob> saved;
    int found = 0;
    for (uint64_t draw = 0; found < 1 && draw < 400; ++draw) {
      const SampleLayout& to = samples[Philox64(1, i, draw) % samples.size()];
      if (to.tied != samples[i].tied || to.vocab != samples[i].vocab ||
          to.weight != samples[i].weight || to.tp * to.pp * to.dp > 48) {
        continue;
      }
      SCOPED_TRACE(samples[i].name + " loaded as " + to.name);
      if (!saved) saved = SaveJob(*MakeLayout(samples[i]));
      Loaded loaded;
      LoadJob(*saved, *MakeLayout(to), {windows[pairs % 2 + pairs % 7 % 2]},
              reads[pairs % 3], &loaded);
      if (HasFatalFailure()) return;
      EXPECT_EQ(loaded.bytes_read, DataBytes(*saved));
      ++found;
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 80);
}

TEST(SharePlanTest, ColumnsThatWereCutOtherwiseAreReadOnce) {
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{
           {1, 2}, {2, 4}, {4, 8}, {8, 4}, {8, 1}, {3, 5}}) {
    SCOPED_TRACE(absl::StrFormat("TP%d to TP%d", from, to));
    const RowsJob stored(from, Cut::kColumns, {480, 960});
    const RowsJob wanted(to, Cut::kColumns, {480, 960});
    const SavedJob saved = SaveJob(stored);
    Loaded loaded;
    LoadJob(saved, wanted, {65536}, 1 << 20, &loaded);
    EXPECT_EQ(loaded.bytes_read, DataBytes(saved));
    if (to > from) {
      EXPECT_GT(loaded.bytes_sent, 0u);
    }
  }
}

TEST(SharePlanTest, WhereNobodySharesAUnitNothingIsSent) {
  const RowsJob job(8, Cut::kRows, {4096, 64});
  const SavedJob saved = SaveJob(job);
  Loaded loaded;
  LoadJob(saved, job, {}, 1 << 20, &loaded);
  EXPECT_EQ(loaded.meetings, 0);
  EXPECT_EQ(loaded.bytes_sent, 0u);
}

TEST(SharePlanTest, ReadersOfOneMatrixHaveEqualWork) {
  const RowsJob stored(1, Cut::kColumns, {16384, 1024});  // 64 MiB
  const RowsJob wanted(8, Cut::kColumns, {16384, 1024});
  const SavePlan plan = PlanSave(stored.items(), stored.StoredBy(Rank{0}));
  Manifest manifest = BlankManifest(stored);
  manifest.files.push_back({.name = ShardName(0),
                            .bytes = plan.file_bytes,
                            .unit_count = 64,
                            .crc_index = 1,
                            .chunks = plan.chunks});
  const auto wanted_by = [&](Rank rank) { return wanted.WantedBy(rank); };
  for (int r = 0; r < 8; ++r) {
    const auto share =
        PlanShare(manifest, wanted.items(), 8, Rank{r}, wanted_by, {});
    ASSERT_TRUE(share.ok()) << share.status();
    uint64_t bytes = 0;
    for (const SharePlan::Range& range : share->reads) {
      bytes += range.end - range.begin;
    }
    EXPECT_NEAR(bytes, 8 << 20, 4 << 20);
    EXPECT_EQ(share->receivers.size(), 7u);
    EXPECT_EQ(share->senders.size(), 7u);
  }
}

// Three ranks want two neighbours, "a" and "b", which rank 0 has stored; rank 0
// also wants the first block of "a" a second time.
class TwiceJob final : public JobLayout {
 public:
  TwiceJob() {
    for (const char* name : {"a", "b"}) {
      items_.push_back({.name = name,
                        .kind = "weight",
                        .dtype = DType::kF32,
                        .shape = {kElements}});
    }
  }
  int world() const override { return 3; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override {
    Holding holding = WantedBy(rank);
    holding.fragments.resize(rank == Rank{0} ? 2 : 0);
    return holding;
  }
  Holding WantedBy(Rank rank) const override {
    const Box whole = WholeBox(items_[0].shape);
    Holding holding{.region_bytes = {2 * kBytes, 4096}, .fragments = {}};
    for (uint32_t item : {0, 1}) {
      holding.fragments.push_back({.item = item,
                                   .part = whole,
                                   .first = 0,
                                   .count = kElements,
                                   .region = 0,
                                   .offset = item * kBytes});
    }
    if (rank == Rank{0}) {
      holding.fragments.push_back(
          {.item = 0, .part = whole, .first = 0, .count = 1024, .region = 1});
    }
    return holding;
  }
  std::string description() const override { return "twice"; }

 private:
  static constexpr int64_t kElements = 640 * 1024;  // 2.5 units
  static constexpr uint64_t kBytes = kElements * 4;
  std::vector<ItemSpec> items_;
};

// What a rank wants twice keeps its steps from being joined. Who reads a unit
// far from there must cut that unit in the same order as the rank itself.
TEST(SharePlanTest, WhatIsWantedTwiceChangesNoOrderElsewhere) {
  const TwiceJob job;
  const SavedJob saved = SaveJob(job);
  Loaded loaded;
  LoadJob(saved, job, {65536}, 1 << 20, &loaded);
  EXPECT_GT(loaded.bytes_sent, 0u);
}

}  // namespace
}  // namespace holdfast::ckpt
