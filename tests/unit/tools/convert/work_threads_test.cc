// Pieces of work on threads: each once, the first error, a stop, ticks.

#include "tools/convert/work_threads.h"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

TEST(WorkThreadsTest, EveryPieceIsDoneOnceByAWorkerOfItsOwn) {
  std::vector<std::atomic<int>> times(1000);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared = false;
  const auto work = [&](size_t piece, int worker) {
    if (++inside[worker] > 1) shared = true;
    ++times[piece];
    --inside[worker];
    return absl::OkStatus();
  };
  ASSERT_TRUE(RunOnThreads(times.size(), {.threads = 3}, work).ok());
  for (const auto& one : times) EXPECT_EQ(one, 1);
  EXPECT_FALSE(shared);
  ASSERT_TRUE(RunOnThreads(0, {.threads = 3}, work).ok());
}

TEST(WorkThreadsTest, TheFirstErrorEndsTheRest) {
  std::atomic<int> begun = 0;
  const auto status =
      RunOnThreads(100000, {.threads = 4}, [&](size_t piece, int) {
        ++begun;
        return piece == 7 ? absl::DataLossError("seven") : absl::OkStatus();
      });
  EXPECT_EQ(status, absl::DataLossError("seven"));
  EXPECT_LT(begun, 100000);
}

TEST(WorkThreadsTest, AStopIsHeardBetweenPiecesAndTheCallerTicks) {
  std::atomic<bool> stop = false;
  const std::thread::id caller = std::this_thread::get_id();
  int ticks = 0;
  WorkThreads how;
  how.threads = 2;
  how.stop = [&stop] { return stop.load(); };
  how.on_tick = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++ticks;
    stop = true;
  };
  const auto status = RunOnThreads(1'000'000, how, [](size_t, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_GE(ticks, 1);
}

}  // namespace
}  // namespace holdfast::tools
