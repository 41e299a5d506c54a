// Which ranks share a file, and where each one's bytes begin.

#include "ckpt/plan/file_plan.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/group/inproc_group.h"
#include "ckpt/session/save_plans.h"
#include "gtest/gtest.h"
#include "tests/support/sim_layout.h"

namespace holdfast::ckpt {
namespace {

std::vector<uint32_t> FilesOf(const FileGroups& groups) {
  std::vector<uint32_t> files;
  for (int rank = 0; rank < groups.world(); ++rank) {
    files.push_back(groups.FileOf(Rank{rank}));
  }
  return files;
}

TEST(FileGroupsTest, AreEqualPartsOfConsecutiveRanks) {
  EXPECT_EQ(FilesOf(FileGroups::OnePerRank(3)),
            (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(FilesOf(FileGroups::Equal(4, 1)),
            (std::vector<uint32_t>{0, 0, 0, 0}));
  EXPECT_EQ(FilesOf(FileGroups::Equal(5, 2)),
            (std::vector<uint32_t>{0, 0, 1, 1, 1}));
  EXPECT_FALSE(FileGroups::Equal(5, 5).shared());
  for (int world = 1; world <= 40; ++world) {
    for (int files = 1; files <= world; ++files) {
      const FileGroups groups = FileGroups::Equal(world, files);
      ASSERT_EQ(groups.count(), static_cast<uint32_t>(files));
      ASSERT_EQ(groups.world(), world);
      ASSERT_EQ(groups.shared(), files < world);
      int smallest = world;
      int largest = 0;
      for (uint32_t file = 0; file < groups.count(); ++file) {
        const int size = Index(groups.End(file)) - Index(groups.First(file));
        smallest = std::min(smallest, size);
        largest = std::max(largest, size);
        ASSERT_EQ(groups.FileOf(groups.First(file)), file);
        ASSERT_EQ(groups.FileOf(Rank{Index(groups.End(file)) - 1}), file);
      }
      ASSERT_GE(smallest, 1);
      ASSERT_LE(largest - smallest, 1);
    }
  }
}

TEST(FileGroupsTest, OfHostsAreTheRunsOfEqualNames) {
  const std::vector<std::string> hosts = {"a", "a", "b", "a", "c", "c", "c"};
  const FileGroups groups = FileGroups::OnePerHost(hosts);
  EXPECT_EQ(FilesOf(groups), (std::vector<uint32_t>{0, 0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(groups.count(), 4u);
  EXPECT_TRUE(groups.shared());
}

TEST(FileGroupsTest, MoreFilesThanRanksAreOnePerRank) {
  const auto ranks = MakeInprocGroups(3);
  EXPECT_EQ(GroupsOf(*ranks[0], 7).count(), 3u);
  EXPECT_EQ(GroupsOf(*ranks[0], 2).count(), 2u);
  EXPECT_EQ(GroupsOf(*ranks[0], 0).count(), 3u);
  // All are in one process.
  EXPECT_EQ(GroupsOf(*ranks[0], -1).count(), 1u);
}

TEST(FilePlanTest, PartsLieOneAfterTheOtherAndMayBeEmpty) {
  FileShape shape;
  EXPECT_EQ(shape.Append({8192, 2}), 4096u);
  EXPECT_EQ(shape.Append({0, 0}), 12288u);
  EXPECT_EQ(shape.Append({4096 * 300, 300}), 12288u);
  EXPECT_EQ(shape.index_offset, 12288u + 4096 * 300);
  EXPECT_EQ(shape.unit_count, 302u);
  // 302 entries of 16 bytes are two blocks.
  EXPECT_EQ(shape.file_bytes(), shape.index_offset + 2 * 4096 + 4096);
  EXPECT_EQ(FileShape().file_bytes(), 2u * 4096);
}

// A layout whose middle rank stores nothing.
class WithAnIdleRank final : public JobLayout {
 public:
  int world() const override { return 3; }
  const std::vector<ItemSpec>& items() const override { return two_.items(); }
  Holding StoredBy(Rank rank) const override {
    if (rank == Rank{1}) return {};
    return two_.StoredBy(Rank{Index(rank) / 2});
  }
  Holding WantedBy(Rank rank) const override { return StoredBy(rank); }
  std::string description() const override { return "ranks3"; }

 private:
  tests::SimLayout two_{2};
};

TEST(FilePlanTest, APlanThatWasMovedIsTheSameButForWhereItLies) {
  const tests::SimLayout layout(2);
  const SavePlan before = PlanSave(layout.items(), layout.StoredBy(Rank{1}));
  EXPECT_EQ(PartOf(before).data_bytes,
            DataAreaBytes(layout.items(), layout.StoredBy(Rank{1})));
  SavePlan moved = before;
  MovePlan(1 << 20, &moved);
  const uint64_t by = (1 << 20) - 4096;
  ASSERT_EQ(moved.units.size(), before.units.size());
  for (size_t i = 0; i < moved.units.size(); ++i) {
    EXPECT_EQ(moved.units[i].file_offset, before.units[i].file_offset + by);
    EXPECT_EQ(moved.units[i].region_offset, before.units[i].region_offset);
  }
  for (size_t i = 0; i < moved.chunks.size(); ++i) {
    EXPECT_EQ(moved.chunks[i].offset, before.chunks[i].offset + by);
  }
  EXPECT_EQ(moved.index_offset, before.index_offset + by);
  EXPECT_NE(HashSavePlan(moved), HashSavePlan(before));
}

// Every rank finds the same places by itself, whatever it plans for.
void CheckPlaces(const JobLayout& layout, const FileGroups& groups) {
  SavePlans zero(&layout, Rank{0}, 0, groups);
  while (zero.PlanNext()) {
  }
  std::vector<std::set<std::pair<uint64_t, uint64_t>>> units(groups.count());
  for (int rank = 0; rank < layout.world(); ++rank) {
    const SavePlans plans(&layout, Rank{rank}, 0, groups);
    EXPECT_EQ(plans.own_hash(), zero.Of(Rank{rank}).hash) << rank;
    EXPECT_EQ(plans.own().chunks, zero.Of(Rank{rank}).chunks) << rank;
    EXPECT_EQ(plans.OwnVote().bytes, zero.VoteOf(Rank{rank}).bytes) << rank;
    EXPECT_EQ(plans.OwnVote().unit_count, zero.VoteOf(Rank{rank}).unit_count);
    const uint32_t file = groups.FileOf(Rank{rank});
    if (plans.leads()) {
      EXPECT_EQ(plans.file(), zero.ShapeOf(file));
    }
    for (const WriteUnit& unit : plans.own().units) {
      units[file].emplace(unit.file_offset, unit.bytes);
    }
  }
  uint64_t total = 0;
  for (uint32_t file = 0; file < groups.count(); ++file) {
    uint64_t end = 4096;
    for (const auto& [offset, bytes] : units[file]) {
      EXPECT_EQ(offset, end);
      end += bytes;
    }
    EXPECT_EQ(end, zero.ShapeOf(file).index_offset);
    EXPECT_EQ(units[file].size(), zero.ShapeOf(file).unit_count);
    total += zero.ShapeOf(file).file_bytes();
  }
  EXPECT_EQ(zero.TotalBytes(), total);
}

TEST(FilePlanTest, UnitsOfAllRanksTileTheirFiles) {
  for (int world = 1; world <= 5; ++world) {
    const tests::SimLayout layout(world);
    for (int files = 1; files <= world; ++files) {
      CheckPlaces(layout, FileGroups::Equal(world, files));
    }
  }
  const WithAnIdleRank idle;
  for (int files = 1; files <= 3; ++files) {
    CheckPlaces(idle, FileGroups::Equal(3, files));
  }
}

TEST(FilePlanTest, TheHashesTellWhoSharesAFile) {
  const tests::SimLayout layout(4);
  const auto hash = [&](const FileGroups& groups, int rank) {
    return SavePlans(&layout, Rank{rank}, 0, groups).own_hash();
  };
  // Rank 0's own plan is the same in all of them.
  const std::set<uint64_t> first = {
      hash(FileGroups::OnePerRank(4), 0), hash(FileGroups::Equal(4, 1), 0),
      hash(FileGroups::Equal(4, 2), 0), hash(FileGroups::Equal(4, 3), 0)};
  EXPECT_EQ(first.size(), 4u);
  // As many files as ranks are no files that are shared.
  EXPECT_EQ(hash(FileGroups::Equal(4, 4), 0),
            hash(FileGroups::OnePerRank(4), 0));
  SavePlans one(&layout, Rank{0}, 0, FileGroups::Equal(4, 1));
  SavePlans two(&layout, Rank{0}, 0, FileGroups::Equal(4, 2));
  while (one.PlanNext() && two.PlanNext()) {
  }
  while (two.PlanNext()) {
  }
  EXPECT_NE(one.JobHash(), two.JobHash());
}

}  // namespace
}  // namespace holdfast::ckpt
