// Any units and any arena: each unit is in one copy, copies are runs of their
// region in the order of the writer, and a writer that waits for nothing but
// copies comes to the end.

#include "ckpt/snapshot/copy_plan.h"

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kPage = 4096;
constexpr uint32_t kMiB = 1u << 20;

// Units of 1 MiB of regions of these sizes, side by side.
std::vector<SnapshotUnit> SideBySide(const std::vector<uint64_t>& sizes) {
  std::vector<SnapshotUnit> units;
  std::vector<uint64_t> done(sizes.size());
  while (true) {
    size_t next = sizes.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (done[i] == sizes[i]) continue;
      if (next == sizes.size() ||
          done[i] * sizes[next] < done[next] * sizes[i]) {
        next = i;
      }
    }
    if (next == sizes.size()) return units;
    const auto bytes = static_cast<uint32_t>(
        std::min<uint64_t>(kMiB, sizes[next] - done[next]));
    units.push_back({static_cast<uint32_t>(next), done[next], bytes});
    done[next] += bytes;
  }
}

// "" or what does not hold.
void Check(const std::vector<SnapshotUnit>& units, uint64_t arena_bytes) {
  const CopyPlan plan = PlanCopies(units, arena_bytes);
  ASSERT_EQ(plan.copy_of.size(), units.size());
  std::vector<uint64_t> covered(plan.copies.size());
  std::vector<uint32_t> left(plan.copies.size());
  uint32_t newest = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t number = plan.copy_of[i];
    ASSERT_LE(number, newest) << "copies begin in the order of their units";
    newest = std::max(newest, number + 1);
    const SnapshotUnit& copy = plan.copies[number];
    EXPECT_EQ(copy.region, units[i].region);
    EXPECT_EQ(copy.offset + covered[number], units[i].offset);
    covered[number] += units[i].bytes;
    ++left[number];
  }
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    EXPECT_EQ(covered[i], plan.copies[i].bytes);
    EXPECT_EQ(left[i], plan.units_in[i]);
  }

  // The arena: slots that are apart, page aligned, and hold any copy of theirs.
  const bool whole = plan.whole();
  for (size_t i = 0; i < plan.places.size(); ++i) {
    EXPECT_EQ(plan.places[i] % kPage, 0u);
    const uint64_t end =
        i + 1 < plan.places.size() ? plan.places[i + 1] : plan.arena_bytes;
    if (whole) {
      EXPECT_LE(plan.places[i] + plan.copies[i].bytes, end);
      continue;
    }
    for (const SnapshotUnit& copy : plan.copies) {
      EXPECT_LE(plan.places[i] + copy.bytes, end);
    }
  }
  uint64_t largest = 0;
  for (const SnapshotUnit& unit : units) {
    largest = std::max<uint64_t>(largest, unit.bytes);
  }
  if (arena_bytes > 0) {
    EXPECT_LE(plan.arena_bytes, std::max(arena_bytes, largest));
  }

  // The writer.
  size_t free = plan.places.size();
  size_t begun = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    while (free > 0 && begun < plan.copies.size()) {
      --free;
      ++begun;
    }
    ASSERT_LT(plan.copy_of[i], begun) << "unit " << i << " waits for ever";
    if (--left[plan.copy_of[i]] == 0) ++free;
  }
}

TEST(CopyPlanTest, AStateOfFourRegionsIsCopiedInLongRuns) {
  const auto units =
      SideBySide({50 * kMiB, 100 * kMiB, 100 * kMiB, 100 * kMiB});
  const CopyPlan plan = PlanCopies(units, 0);
  EXPECT_TRUE(plan.whole());
  EXPECT_EQ(plan.arena_bytes, uint64_t{350} * kMiB);
  EXPECT_EQ(plan.copies.size(), 7u + 3 * 13) << "of 8 MiB";
  Check(units, 0);
}

TEST(CopyPlanTest, AHugeStateIsNotMoreCopiesThanADeviceQueues) {
  std::vector<SnapshotUnit> units;
  for (uint64_t i = 0; i < 14000; ++i) units.push_back({0, i * kMiB, kMiB});
  EXPECT_LE(PlanCopies(units, 0).copies.size(), 256u);
  Check(units, 0);
  Check(units, uint64_t{3000} * kMiB);
}

TEST(CopyPlanTest, ASmallArenaIsARingThatNeverBlocks) {
  const auto units = SideBySide({9 * kMiB, 18 * kMiB, 18 * kMiB, 18 * kMiB});
  for (uint64_t arena = kPage; arena < uint64_t{70} * kMiB;
       arena = arena * 3 / 2 + kPage) {
    Check(units, arena / kPage * kPage);
  }
  EXPECT_EQ(PlanCopies(units, 1).places.size(), 1u) << "a unit at least";
}

TEST(CopyPlanTest, NothingIsNothing) {
  EXPECT_EQ(PlanCopies({}, 0).arena_bytes, 0u);
  EXPECT_EQ(PlanCopies({}, kMiB).arena_bytes, 0u);
}

TEST(CopyPlanTest, AnyUnitsAndAnyArena) {
  std::mt19937_64 random(1);
  for (int world = 0; world < 300; ++world) {
    std::vector<SnapshotUnit> units;
    std::vector<uint64_t> next(1 + random() % 4);
    for (size_t i = 1 + random() % 60; i > 0; --i) {
      const auto region = static_cast<uint32_t>(random() % next.size());
      if (random() % 4 == 0) next[region] += kPage * (random() % 3);  // a hole
      const auto bytes = static_cast<uint32_t>(kPage * (1 + random() % 256));
      units.push_back({region, next[region], bytes});
      next[region] += bytes;
    }
    SCOPED_TRACE(world);
    Check(units, random() % 3 == 0 ? 0 : kPage * (random() % 4000));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
