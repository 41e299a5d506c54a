// Two units of one page in each of two regions, walked side by side. The writer
// and the optimizer are this thread, except where a test says otherwise.

#include "ckpt/snapshot/fence.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;
constexpr absl::Duration kShort = absl::Milliseconds(20);

struct World {
  explicit World(FenceOptions options = {}, uint64_t pages = 2)
      : memory{AlignedBuffer(pages * kPage), AlignedBuffer(pages * kPage)},
        fence(Units(pages), {memory[0].span(), memory[1].span()}, RealClock(),
              options) {
    Fill(std::byte{1});
  }

  static std::vector<SnapshotUnit> Units(uint64_t pages) {
    std::vector<SnapshotUnit> units;
    for (uint64_t page = 0; page < pages; ++page) {
      for (uint32_t region = 0; region < 2; ++region) {
        units.push_back({region, page * kPage, kPage});
      }
    }
    return units;
  }
  void Fill(std::byte value) {
    for (AlignedBuffer& buffer : memory) {
      std::memset(buffer.data(), std::to_integer<int>(value), buffer.size());
    }
  }
  // Begins and ends a unit, and says whether its bytes are all `value`.
  bool WriteUnitOf(size_t unit, std::byte value) {
    const auto bytes = fence.BeginUnit(unit);
    if (!bytes.has_value()) return false;
    bool same = true;
    for (const std::byte b : *bytes) same &= b == value;
    return fence.EndUnit(unit).ok() && same;
  }

  AlignedBuffer memory[2];
  Fence fence;
};

TEST(FenceTest, LetsEverythingPassWhileNothingIsSaved) {
  World world;
  EXPECT_FALSE(world.fence.armed());
  EXPECT_TRUE(world.fence.TryWrite(0, 0, 2 * kPage));
}

TEST(FenceTest, HandsOutLiveMemoryWithoutACopy) {
  World world;
  world.fence.Arm();
  const auto bytes = world.fence.BeginUnit(0);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(bytes->data(), world.memory[0].data());
  EXPECT_EQ(world.fence.costs().bytes_copied, 0u);
}

TEST(FenceTest, CopiesAUnitThatTheOptimizerReachesFirst) {
  World world;
  world.fence.Arm();
  ASSERT_TRUE(world.fence.TryWrite(0, 0, kPage));
  world.Fill(std::byte{2});  // beyond the fence: units 1 to 3 are torn too
  EXPECT_TRUE(world.WriteUnitOf(0, std::byte{1})) << "the copy was written";
  EXPECT_EQ(world.fence.costs().bytes_copied, kPage);
  EXPECT_TRUE(world.fence.status().ok());
}

TEST(FenceTest, HoldsTheOptimizerBackOnlyWhileAUnitIsBeingWritten) {
  World world;
  world.fence.Arm();
  ASSERT_TRUE(world.fence.BeginUnit(0).has_value());
  EXPECT_FALSE(world.fence.TryWrite(0, 0, 1));
  EXPECT_TRUE(world.fence.TryWrite(1, 0, 1)) << "unit 1 is copied";
  ASSERT_TRUE(world.fence.EndUnit(0).ok());
  EXPECT_TRUE(world.fence.TryWrite(0, 0, 1));
}

TEST(FenceTest, ARangeTouchesExactlyTheUnitsItMeets) {
  World world({.arena_bytes = 4 * kPage}, 4);
  world.fence.Arm();
  ASSERT_TRUE(world.fence.TryWrite(0, kPage - 1, 2));
  EXPECT_EQ(world.fence.costs().bytes_copied, 2 * kPage);
  ASSERT_TRUE(world.fence.TryWrite(0, 2 * kPage, 0)) << "empty range";
  EXPECT_EQ(world.fence.costs().bytes_copied, 2 * kPage);
}

TEST(FenceTest, WaitsWhenTheArenaIsFullAndReusesASlotOnceItIsWritten) {
  World world({.arena_bytes = kPage});
  world.fence.Arm();
  ASSERT_TRUE(world.fence.TryWrite(0, 0, kPage));
  EXPECT_FALSE(world.fence.TryWrite(1, 0, kPage)) << "one slot, taken";
  EXPECT_TRUE(world.WriteUnitOf(0, std::byte{1}));
  EXPECT_TRUE(world.fence.TryWrite(1, 0, kPage));
  EXPECT_TRUE(world.WriteUnitOf(1, std::byte{1}));
  EXPECT_TRUE(world.fence.TryWrite(0, kPage, kPage));
}

TEST(FenceTest, PoisonsTheSaveRatherThanStopTheStep) {
  World world({.arena_bytes = kPage});
  world.fence.Arm();
  ASSERT_TRUE(world.fence.TryWrite(0, 0, kPage));
  BlockingWrite(world.fence, RealClock(), kShort, 1, 0, kPage);
  EXPECT_EQ(world.fence.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(world.fence.status().message()),
              HasSubstr("checkpoint.fence_ms) for bytes 0-4095 of region 1"));
  EXPECT_GE(world.fence.costs().wait_ms, 20);
  EXPECT_TRUE(world.fence.TryWrite(0, kPage, kPage)) << "nobody waits again";
}

TEST(FenceTest, NoticesAUnitThatWasReleasedTooEarly) {
  World world({.canary_release_early = true});
  world.fence.Arm();
  ASSERT_TRUE(world.fence.BeginUnit(0).has_value());
  ASSERT_TRUE(world.fence.TryWrite(0, 0, kPage)) << "the canary lets it pass";
  EXPECT_EQ(world.fence.EndUnit(0).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(world.fence.status().ok());
}

TEST(FenceTest, ForgetsTheLastSaveWhenItIsArmedAgain) {
  World world({.arena_bytes = kPage});
  for (int save = 0; save < 3; ++save) {
    world.Fill(std::byte{1});
    world.fence.Arm();
    ASSERT_TRUE(world.fence.TryWrite(0, 0, kPage));
    world.fence.Poison(absl::AbortedError("this save only"));
    world.fence.Release();
  }
  world.fence.Arm();
  EXPECT_TRUE(world.fence.status().ok());
  for (size_t unit = 0; unit < 4; ++unit) {
    EXPECT_TRUE(world.WriteUnitOf(unit, std::byte{1}));
  }
}

TEST(FenceDeathTest, AStoreWithoutTheFenceDiesWhenPagesAreProtected) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        World world({.protect = true});
        world.fence.Arm();
        world.memory[0].data()[5] = std::byte{9};
      },
      "");
}

TEST(FenceTest, ProtectedPagesOpenBehindTheFenceAndAtTheEnd) {
  World world({.protect = true});
  world.fence.Arm();
  ASSERT_TRUE(world.fence.TryWrite(0, 0, 1));
  world.memory[0].data()[5] = std::byte{9};
  EXPECT_TRUE(world.WriteUnitOf(0, std::byte{1}));
  world.fence.Release();
  world.Fill(std::byte{3});
}

// The optimizer adds one to every byte, step after step, while another thread
// saves again and again: each save must read one single value everywhere.
TEST(FenceTest, EverySaveSeesOneStateWhileTheOptimizerRuns) {
  constexpr uint64_t kPages = 24;
  World world({.arena_bytes = 3 * kPage}, kPages);
  std::atomic<int> wanted{0}, written{0};
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::atomic<int> value_saved{1};
  std::thread writer([&] {
    while (!stop) {
      if (wanted == written) {
        std::this_thread::yield();
        continue;
      }
      const std::byte value{static_cast<unsigned char>(value_saved.load())};
      for (size_t unit = 0; unit < world.fence.unit_count();) {
        const auto bytes = world.fence.BeginUnit(unit);
        if (!bytes.has_value()) continue;
        for (const std::byte b : *bytes) torn += b != value;
        if (!world.fence.EndUnit(unit).ok()) ++torn;
        ++unit;
      }
      world.fence.Release();
      ++written;
    }
  });
  uint64_t copied = 0;
  for (int step = 1; step <= 60; ++step) {
    if (wanted == written) {
      copied += world.fence.costs().bytes_copied;
      value_saved = step;
      world.fence.Arm();
      ++wanted;
    }
    for (uint64_t page = 0; page < kPages; ++page) {
      for (uint32_t region = 0; region < 2; ++region) {
        BlockingWrite(world.fence, RealClock(), absl::Seconds(10), region,
                      page * kPage, kPage);
        for (uint64_t i = 0; i < kPage; ++i) {
          std::byte& b = world.memory[region].data()[page * kPage + i];
          b = std::byte(std::to_integer<int>(b) + 1);
        }
      }
    }
  }
  while (wanted != written) std::this_thread::yield();
  stop = true;
  writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(written, 1);
}

}  // namespace
}  // namespace holdfast::ckpt
