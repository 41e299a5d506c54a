// Files that several ranks share: four ranks on two hosts, over the simulated
// disk and network.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/group/inproc_group.h"
#include "ckpt/session/save_writer.h"
#include "ckpt/snapshot/fence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sim_world.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::SimJob;
using tests::SimOp;
using tests::SimRank;
using tests::SimWorld;

constexpr int kRanks = 4;

class SharedFilesTest : public testing::TestWithParam<int> {
 protected:
  void Start(int files, int ranks = kRanks, bool object_store = false) {
    tests::SimWorldOptions options;
    options.seed = GetParam();
    options.files = files;
    options.disk.object_store = object_store;
    world_.emplace(options);
    job_ = &world_->StartJob(ranks);
    ASSERT_TRUE(world_->Claim(*job_).ok());
  }
  SimRank& rank(int i) { return *job_->ranks[i]; }
  void Break(int i, SimOp op, absl::StatusCode code) {
    tests::SimFault fault;
    fault.process = rank(i).process();
    fault.op = op;
    fault.status = absl::Status(code, "broken");
    world_->disk().Inject(std::move(fault));
  }
  std::vector<std::string> Shards() {
    std::vector<std::string> names = world_->disk().Names();
    std::erase_if(names, [](const std::string& name) {
      return name.find("shard-") == std::string::npos;
    });
    return names;
  }
  // A new job of so many ranks, whose own files are as `files` says.
  void ExpectFound(int64_t step, int ranks, int files) {
    world_->KillAllJobs();
    world_->options().files = files;
    const absl::StatusOr<int64_t> found = world_->LoadAndCheck(ranks);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, step);
  }
  std::string TextOf(int i) {
    return std::string(rank(i).saved()->status.message());
  }

  std::optional<SimWorld> world_;
  SimJob* job_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Seeds, SharedFilesTest, testing::Range(1, 9));

TEST_P(SharedFilesTest, WhatIsSavedInFewFilesLoadsOnAnyLayout) {
  for (const auto& [files, count] :
       {std::pair(1, 1u), {2, 2u}, {3, 3u}, {-1, 2u}, {9, 4u}}) {
    SCOPED_TRACE(files);
    Start(files);
    ASSERT_TRUE(world_->Save(*job_, 10).ok());
    world_->FinishRetention(*job_);
    EXPECT_EQ(Shards().size(), count);
    ASSERT_TRUE(world_->Save(*job_, 20).ok());
    uint64_t bytes = 0;
    for (int i = 0; i < kRanks; ++i) bytes += rank(i).saved()->bytes;
    EXPECT_EQ(bytes, rank(0).saved()->bytes_total);
    for (const int ranks : {1, 3, 5}) ExpectFound(20, ranks, 0);
    ExpectFound(20, kRanks, 2);
  }
}

TEST_P(SharedFilesTest, ALeaderThatCannotMakeItsFileCostsThatSaveOnly) {
  for (const int leader : {0, 2}) {
    Start(2);
    Break(leader, SimOp::kCreate, absl::StatusCode::kUnavailable);
    EXPECT_FALSE(world_->Save(*job_, 10).ok());
    EXPECT_EQ(rank(leader).saved()->outcome, SaveOutcome::kFailed);
    EXPECT_THAT(TextOf(leader), HasSubstr("creating its file"));
    // It waited for a file, and stopped when it heard.
    EXPECT_EQ(rank(leader + 1).saved()->outcome, SaveOutcome::kAborted);
    EXPECT_TRUE(world_->Save(*job_, 10).ok());
    ExpectFound(10, 3, 2);
  }
}

TEST_P(SharedFilesTest, AMemberWhoseDiskIsFullCostsThatSaveOnly) {
  for (const SimOp op : {SimOp::kOpen, SimOp::kWrite, SimOp::kSync}) {
    SCOPED_TRACE(std::string(Name(op)));
    Start(2);
    Break(3, op, absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(world_->Save(*job_, 10).ok());
    EXPECT_EQ(rank(3).saved()->outcome, SaveOutcome::kFailed);
    EXPECT_THAT(TextOf(3), HasSubstr("broken"));
    for (const int other : {0, 1, 2}) {
      EXPECT_EQ(rank(other).saved()->outcome, SaveOutcome::kAborted);
      EXPECT_THAT(TextOf(other), HasSubstr("rank 3 (sim1) voted no"));
    }
    EXPECT_TRUE(world_->Save(*job_, 10).ok());
    ExpectFound(10, 3, 0);
  }
}

TEST_P(SharedFilesTest, ALeaderNamesTheRankThatDied) {
  Start(1);
  ASSERT_TRUE(world_->Save(*job_, 10).ok());
  world_->FinishRetention(*job_);
  world_->BeginSave(*job_, 20);
  world_->disk().KillAfter(rank(3).process(), 4);
  ASSERT_TRUE(world_->RunUntil([this] {
    return std::all_of(
        job_->ranks.begin(), job_->ranks.end(),
        [](const auto& r) { return r == nullptr || r->saved().has_value(); });
  }));
  ASSERT_EQ(job_->ranks[3], nullptr);
  EXPECT_EQ(rank(0).saved()->outcome, SaveOutcome::kFailed);
  EXPECT_THAT(
      TextOf(0),
      HasSubstr("1 of 4 ranks that share this rank's file did not finish their "
                "parts within 120 s: 3 (on node sim1)"));
  EXPECT_EQ(rank(1).saved()->outcome, SaveOutcome::kAborted);
  ExpectFound(10, 4, 1);
}

TEST_P(SharedFilesTest, WithoutTheirLeaderRanksGiveUpByThemselves) {
  // Rank 0 is the leader of all, and who tells outcomes.
  Start(1);
  ASSERT_TRUE(world_->Save(*job_, 10).ok());
  world_->FinishRetention(*job_);
  rank(0).storage().SetDelay(SimOp::kCreate, absl::Hours(2));
  world_->BeginSave(*job_, 20);
  ASSERT_TRUE(world_->RunUntil([this] {
    return std::all_of(job_->ranks.begin(), job_->ranks.end(),
                       [](const auto& r) { return r->saved().has_value(); });
  }));
  for (int i = 1; i < kRanks; ++i) {
    EXPECT_FALSE(rank(i).saved()->status.ok());
  }
  EXPECT_THAT(TextOf(0) + TextOf(1) + TextOf(2) + TextOf(3),
              HasSubstr("rank 0 (sim0), whose file this rank shares, did not "
                        "make it within 90 s"));
  rank(0).storage().SetDelay(SimOp::kCreate, absl::ZeroDuration());
  ExpectFound(10, 4, 1);
}

TEST_P(SharedFilesTest, AFileMayBeThereBeforeARankHasBegun) {
  Start(2);
  for (const int64_t step : {10, 20, 30}) {
    for (int i = 0; i < kRanks; ++i) rank(i).BeginSave(step, i == 3 ? 300 : 0);
    ASSERT_TRUE(world_->RunUntil([this] {
      return std::all_of(
          job_->ranks.begin(), job_->ranks.end(),
          [](const auto& r) { return r->saved().has_value() && r->stepped(); });
    }));
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_TRUE(rank(i).saved()->status.ok()) << rank(i).saved()->status;
    }
  }
  ExpectFound(30, 2, 0);
}

TEST_P(SharedFilesTest, OneRankAloneWritesAsEver) {
  Start(1, /*ranks=*/1);
  EXPECT_TRUE(world_->Save(*job_, 10).ok());
  ExpectFound(10, 2, 1);
}

TEST_P(SharedFilesTest, AnObjectStoreIsRefusedByName) {
  Start(2, kRanks, /*object_store=*/true);
  EXPECT_FALSE(world_->Save(*job_, 10).ok());
  EXPECT_THAT(TextOf(0) + TextOf(1) + TextOf(2) + TextOf(3),
              HasSubstr("an object is written by one process"));
}

TEST(SharedFileWriterTest, RefusesPartsThatAreNotAsPlanned) {
  const tests::SimLayout layout(3);
  const SavePlans plans(&layout, Rank{0}, 0, FileGroups::Equal(3, 1));
  const SavePlans other(&layout, Rank{1}, 0, FileGroups::Equal(3, 1));
  std::vector<AlignedBuffer> memory;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : layout.StoredBy(Rank{0}).region_bytes) {
    memory.emplace_back(bytes);
  }
  for (AlignedBuffer& buffer : memory) regions.push_back(buffer.span());
  tests::SimClock clock;
  Fence fence(plans.SnapshotUnits(), regions, clock, {});
  const auto groups = MakeInprocGroups(1);
  SessionEnv env;
  env.group = groups[0].get();
  env.clock = &clock;
  env.ops_max = 8;
  SaveWriter writer(env, &plans, &fence, {});

  std::vector<Unit> units;
  for (const WriteUnit& unit : other.own().units) {
    units.push_back({unit.file_offset, unit.bytes, 7});
  }
  std::sort(units.begin(), units.end(),
            [](const Unit& a, const Unit& b) { return a.offset < b.offset; });
  EXPECT_TRUE(writer.AddPart(Rank{1}, units).ok());
  EXPECT_FALSE(writer.AddPart(Rank{0}, units).ok()) << "the leader's own";
  EXPECT_FALSE(writer.AddPart(Rank{2}, units).ok()) << "where rank 1's are";
  EXPECT_FALSE(writer.AddPart(Rank{3}, units).ok()) << "no such rank";
  const auto refused = [&](size_t at, Unit unit) {
    std::vector<Unit> changed = units;
    changed[at] = unit;
    return !writer.AddPart(Rank{1}, changed).ok();
  };
  EXPECT_TRUE(refused(0, {units[0].offset + 4096, units[0].bytes, 7}));
  EXPECT_TRUE(refused(1, {units[1].offset, 0, 7}));
  EXPECT_TRUE(refused(1, {units[1].offset, units[1].bytes + 1, 7}));
  EXPECT_TRUE(refused(units.size() - 1,
                      {units.back().offset, units.back().bytes + 4096, 7}));
  units.pop_back();
  const absl::Status fewer = writer.AddPart(Rank{1}, units);
  EXPECT_EQ(fewer.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(fewer.message()), HasSubstr("the part of rank 1"));
}

}  // namespace
}  // namespace holdfast::ckpt
