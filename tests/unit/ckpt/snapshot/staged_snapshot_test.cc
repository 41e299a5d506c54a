// The copier below keeps each copy back until the test lets it run, and then
// takes what the memory holds at that moment: a snapshot that does not wait for
// events hands out the wrong bytes.

#include "ckpt/snapshot/staged_snapshot.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/late_copier.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::LateCopier;

constexpr uint64_t kPage = 4096;

class StagedSnapshotTest : public testing::Test {
 protected:
  StagedSnapshotTest() {
    for (uint64_t i = 0; i < kUnits; ++i) {
      units_.push_back({0, i * kPage, kPage});
    }
    std::memset(device_.data(), 7, device_.size());
  }

  // An arena of so many units.
  StagedSnapshot& Make(uint64_t slots) {
    CopyPlan plan = PlanCopies(units_, slots * kPage);
    if (slots == 0) {
      // A copy for each unit; the plan would join such small ones.
      plan = {.copies = units_,
              .copy_of = {0, 1, 2, 3},
              .units_in = {1, 1, 1, 1},
              .places = {0, kPage, 2 * kPage, 3 * kPage},
              .arena_bytes = 4 * kPage};
    }
    const auto arena = copier_.TakeMemory(plan.arena_bytes);
    snapshot_ = std::make_unique<StagedSnapshot>(units_, 1, std::move(plan),
                                                 *arena, copier_, RealClock());
    return *snapshot_;
  }

  static constexpr uint64_t kUnits = 4;
  std::vector<SnapshotUnit> units_;
  AlignedBuffer device_{kUnits * kPage};
  LateCopier copier_{{device_.span()}};
  std::unique_ptr<StagedSnapshot> snapshot_;
};

TEST_F(StagedSnapshotTest, AUnitIsThereWhenItsCopyHasPassed) {
  StagedSnapshot& snapshot = Make(0);
  snapshot.Arm();
  EXPECT_EQ(copier_.fixed(), 1);
  EXPECT_FALSE(snapshot.BeginUnit(0).has_value());
  copier_.RunOne();
  const auto bytes = snapshot.BeginUnit(0);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ((*bytes)[0], std::byte{7});
  EXPECT_FALSE(snapshot.BeginUnit(1).has_value());
}

TEST_F(StagedSnapshotTest, TheOptimizerWaitsForTheCopyAndNotForTheWrite) {
  StagedSnapshot& snapshot = Make(0);
  snapshot.Arm();
  EXPECT_FALSE(snapshot.TryWrite(0, 0, kPage));
  copier_.RunOne();
  EXPECT_TRUE(snapshot.TryWrite(0, 0, kPage));
  EXPECT_FALSE(snapshot.TryWrite(0, kPage - 1, 2)) << "meets unit 1";
  std::memset(device_.data(), 8, kPage);
  EXPECT_EQ((*snapshot.BeginUnit(0))[0], std::byte{7}) << "the state at Arm";
  EXPECT_EQ(snapshot.costs().bytes_copied, kPage);
}

TEST_F(StagedSnapshotTest, NeighboursAreOneCopy) {
  StagedSnapshot& snapshot = Make(kUnits);
  snapshot.Arm();
  EXPECT_EQ(copier_.begun(), 1u);
  copier_.RunOne();
  std::memset(device_.data(), 8, device_.size());
  for (size_t i = 0; i < kUnits; ++i) {
    const auto bytes = snapshot.BeginUnit(i);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ(bytes->size(), kPage);
    EXPECT_EQ((*bytes)[kPage - 1], std::byte{7});
    EXPECT_TRUE(snapshot.EndUnit(i).ok());
  }
  EXPECT_EQ(snapshot.costs().bytes_copied, kUnits * kPage);
}

TEST_F(StagedSnapshotTest, ASmallerArenaIsRefilledAsUnitsAreWritten) {
  StagedSnapshot& snapshot = Make(2);
  snapshot.Arm();
  EXPECT_EQ(copier_.begun(), 2u);
  copier_.RunAll();
  EXPECT_TRUE(snapshot.TryWrite(0, 0, 2 * kPage));
  EXPECT_FALSE(snapshot.TryWrite(0, 2 * kPage, 1)) << "not copied yet";
  const auto first = snapshot.BeginUnit(0);
  const auto second = snapshot.BeginUnit(1);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(snapshot.BeginUnit(2).has_value());
  // Written in another order.
  EXPECT_TRUE(snapshot.EndUnit(1).ok());
  EXPECT_EQ(copier_.begun(), 3u);
  EXPECT_FALSE(snapshot.TryWrite(0, 2 * kPage, 1)) << "its copy has not passed";
  copier_.RunAll();
  EXPECT_TRUE(snapshot.TryWrite(0, 2 * kPage, kPage));
  EXPECT_EQ((*snapshot.BeginUnit(2)).data(), second->data());
  EXPECT_EQ((*first)[0], std::byte{7}) << "still being written";
  EXPECT_TRUE(snapshot.EndUnit(0).ok());
  copier_.RunAll();
  EXPECT_TRUE(snapshot.TryWrite(0, 0, kUnits * kPage));
  EXPECT_TRUE(snapshot.BeginUnit(3).has_value());
  EXPECT_EQ(copier_.fixed(), 1) << "later copies are of the same state";
}

TEST_F(StagedSnapshotTest, APoisonedOneHoldsNobodyUp) {
  StagedSnapshot& snapshot = Make(0);
  snapshot.Arm();
  snapshot.Poison(absl::AbortedError("gone"));
  EXPECT_TRUE(snapshot.TryWrite(0, 0, kPage));
  copier_.RunOne();
  ASSERT_TRUE(snapshot.BeginUnit(0).has_value());
  EXPECT_EQ(snapshot.EndUnit(0).message(), "gone");
  snapshot.Release();
  EXPECT_FALSE(snapshot.armed());
  snapshot.Arm();
  EXPECT_TRUE(snapshot.status().ok()) << "the next save is another one";
  EXPECT_FALSE(snapshot.TryWrite(0, 0, kPage));
}

TEST_F(StagedSnapshotTest, WhoWaitsTooLongGivesTheSaveUpAndGoesOn) {
  StagedSnapshot& snapshot = Make(0);
  snapshot.Arm();
  BlockingWrite(snapshot, RealClock(), absl::Milliseconds(5), 0, kPage, kPage);
  EXPECT_EQ(snapshot.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(snapshot.costs().wait_ms, 5);
}

TEST_F(StagedSnapshotTest, ADeviceThatFailsFailsTheSaveAndHoldsNobodyUp) {
  StagedSnapshot& snapshot = Make(0);
  snapshot.Arm();
  copier_.Fail(absl::DataLossError("uncorrectable memory"));
  EXPECT_FALSE(snapshot.BeginUnit(0).has_value());
  EXPECT_EQ(snapshot.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(snapshot.status().message()),
              HasSubstr("copying bytes 0-4095 of region 0 from the device: "
                        "uncorrectable memory"));
  BlockingWrite(snapshot, RealClock(), absl::Minutes(1), 0, 0, kPage);
}

// What has passed before is good.
TEST_F(StagedSnapshotTest, ADeviceThatFailsLaterHarmsNoSave) {
  StagedSnapshot& snapshot = Make(kUnits);
  snapshot.Arm();
  copier_.RunAll();
  ASSERT_TRUE(snapshot.BeginUnit(0).has_value());
  copier_.Fail(absl::InternalError("another kernel"));
  for (size_t i = 1; i < kUnits; ++i) {
    ASSERT_TRUE(snapshot.BeginUnit(i).has_value());
  }
  for (size_t i = 0; i < kUnits; ++i) EXPECT_TRUE(snapshot.EndUnit(i).ok());
}

// Under TSan: both threads ask, the writer refills.
TEST_F(StagedSnapshotTest, WriterAndOptimizerMeet) {
  StagedSnapshot& snapshot = Make(2);
  copier_.RunByItself();
  for (int save = 0; save < 50; ++save) {
    std::memset(device_.data(), save, device_.size());
    snapshot.Arm();
    std::thread writer([&] {
      for (size_t unit = 0; unit < kUnits; ++unit) {
        auto bytes = snapshot.BeginUnit(unit);
        while (!bytes.has_value()) {
          std::this_thread::yield();
          bytes = snapshot.BeginUnit(unit);
        }
        for (const std::byte byte : *bytes) ASSERT_EQ(byte, std::byte(save));
        ASSERT_TRUE(snapshot.EndUnit(unit).ok());
      }
    });
    for (uint64_t unit = 0; unit < kUnits; ++unit) {
      BlockingWrite(snapshot, RealClock(), absl::Minutes(1), 0, unit * kPage,
                    kPage);
      // By the device, in the order of its copies.
      copier_.Store(0, unit * kPage, kPage, 0xee);
    }
    writer.join();
    EXPECT_TRUE(snapshot.status().ok());
    snapshot.Release();
  }
}

}  // namespace
}  // namespace holdfast::ckpt
