// Work where the system refuses threads: the limit is real, in a child process.

#include "ckpt/base/threads.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "ckpt/base/start_thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/in_child.h"
#include "tests/support/thread_limit.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::InChild;
using tests::LimitThreads;

// Who did the work, and how often the caller ticked meanwhile.
struct Seen {
  std::set<size_t> workers;
  std::set<std::thread::id> threads;
  int ticks = 0;
  int ticks_elsewhere = 0;
};

// Workers share `pieces` pieces of a millisecond. None ends before the caller
// ticks, which it does when all have been started: a thread that is over makes
// room for another.
Seen Work(size_t wanted, int pieces) {
  using std::chrono::milliseconds;
  Seen seen;
  std::mutex lock;
  std::atomic<int> next = 0;
  std::atomic<bool> ticked = false;
  const auto caller = std::this_thread::get_id();
  RunWorkers({.purpose = "a test",
              .wanted = wanted,
              .every = milliseconds(1),
              .tick =
                  [&] {
                    ++seen.ticks;
                    ticked = true;
                    if (std::this_thread::get_id() != caller) {
                      ++seen.ticks_elsewhere;
                    }
                  }},
             [&](size_t worker, const WorkerTurn& turn) {
               {
                 const std::lock_guard guard(lock);
                 seen.workers.insert(worker);
                 seen.threads.insert(std::this_thread::get_id());
               }
               while (next++ < pieces || !ticked) {
                 std::this_thread::sleep_for(milliseconds(1));
                 turn();
               }
             });
  return seen;
}

TEST(ThreadsTest, EachWorkerHasAThreadAndTheCallerTicks) {
  const Seen seen = Work(3, 30);
  EXPECT_EQ(seen.workers, (std::set<size_t>{0, 1, 2}));
  EXPECT_EQ(seen.threads.size(), 3u);
  EXPECT_FALSE(seen.threads.contains(std::this_thread::get_id()));
  EXPECT_GE(seen.ticks, 1);
  EXPECT_EQ(seen.ticks_elsewhere, 0);
}

TEST(ThreadsTest, WithoutAnyThreadTheCallerDoesTheWorkAndTicksBetweenPieces) {
  const std::string failure = InChild([]() -> std::string {
    if (!LimitThreads(0)) return "skip";
    const Seen seen = Work(3, 20);
    if (seen.workers != std::set<size_t>{0}) return "other workers";
    if (!seen.threads.contains(std::this_thread::get_id())) return "a thread";
    return seen.ticks >= 10 ? "" : "the caller did not tick";
  });
  if (failure == "skip") GTEST_SKIP() << "this user's threads have no limit";
  EXPECT_EQ(failure, "");
}

TEST(ThreadsTest, OfManyWorkersTheFirstGetTheThreadsThatThereAre) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own, which counts";
#endif
  const std::string failure = InChild([]() -> std::string {
    if (!LimitThreads(2)) return "skip";
    // Long enough that no worker is through before the last is refused.
    const Seen seen = Work(5, 400);
    if (seen.workers != std::set<size_t>{0, 1}) return "other workers";
    return seen.threads.contains(std::this_thread::get_id()) ? "the caller"
                                                             : "";
  });
  if (failure == "skip") GTEST_SKIP() << "wants root";
  EXPECT_EQ(failure, "");
}

TEST(ThreadsTest, ARefusedThreadIsAStatusThatSaysWhatItWasFor) {
  const std::string said = InChild([]() -> std::string {
    if (!LimitThreads(0)) return "skip";
    const auto thread = StartThread("the watchdog", [] {});
    return thread.ok() ? "started" : thread.status().ToString();
  });
  if (said == "skip") GTEST_SKIP() << "this user's threads have no limit";
  EXPECT_THAT(said, HasSubstr("RESOURCE_EXHAUSTED: starting a thread for the "
                              "watchdog: Resource temporarily unavailable"));
  EXPECT_THAT(said, HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace holdfast::ckpt
