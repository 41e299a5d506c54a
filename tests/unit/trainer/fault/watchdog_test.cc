// An expired deadline names rank, host, operation and who is waited for.

#include "trainer/fault/watchdog.h"

#include <atomic>
#include <filesystem>
#include <mutex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;

// What a watchdog did, seen by the test's own thread.
struct Observer {
  std::mutex mutex;
  FailureReport report;
  std::atomic<int> ended_with{0};

  WatchdogOptions Options() {
    WatchdogOptions options;
    options.rank = 3;
    options.host = "n017";
    options.poll = absl::Milliseconds(1);
    options.linger = absl::ZeroDuration();
    options.host_of = [](int rank) {
      return "host-of-" + std::to_string(rank);
    };
    options.on_expiry = [this](const FailureReport& r) {
      const std::lock_guard<std::mutex> lock(mutex);
      report = r;
    };
    options.end_process = [this](int code) { ended_with = code; };
    return options;
  }
};

TEST(WatchdogTest, AnExpiredScopeEndsTheProcessAndSaysWhy) {
  Heartbeat heartbeat;
  Observer observer;
  const Heartbeat::Scope step(&heartbeat, "step 9", absl::Milliseconds(20));
  const Heartbeat::Scope reduce(&heartbeat, "all-reduce sum dp");
  heartbeat.SetWaitingFor(5);
  const auto watchdog = Watchdog::Start(heartbeat, observer.Options());
  ASSERT_TRUE(watchdog.ok()) << watchdog.status();
  while (observer.ended_with == 0) std::this_thread::yield();
  EXPECT_EQ(observer.ended_with, 74);
  const std::lock_guard<std::mutex> lock(observer.mutex);
  EXPECT_EQ(observer.report.rank, 3);
  EXPECT_EQ(observer.report.host, "n017");
  EXPECT_EQ(observer.report.operation, "all-reduce sum dp");
  EXPECT_EQ(observer.report.waiting_for, 5);
  EXPECT_EQ(observer.report.waiting_for_host, "host-of-5");
  EXPECT_THAT(observer.report.message,
              HasSubstr("rank 3 on n017: 'all-reduce sum dp' has taken"));
  EXPECT_THAT(observer.report.message,
              HasSubstr("waiting for rank 5 on host-of-5"));
}

TEST(WatchdogTest, ScopesThatEndInTimeAreLeftAlone) {
  Heartbeat heartbeat;
  Observer observer;
  {
    const auto watchdog = Watchdog::Start(heartbeat, observer.Options());
    ASSERT_TRUE(watchdog.ok()) << watchdog.status();
    for (int i = 0; i < 20; ++i) {
      const Heartbeat::Scope step(&heartbeat, "step", absl::Seconds(30));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(observer.ended_with, 0);
}

TEST(WatchdogDeathTest, ByDefaultTheProcessEndsWith74) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Heartbeat heartbeat;
        WatchdogOptions options;
        options.rank = 1;
        options.host = "n1";
        options.poll = absl::Milliseconds(1);
        options.linger = absl::ZeroDuration();
        const auto watchdog = Watchdog::Start(heartbeat, options);
        const Heartbeat::Scope step(&heartbeat, "load", absl::Milliseconds(5));
        while (true) std::this_thread::yield();
      },
      testing::ExitedWithCode(74), "rank 1 on n1: 'load' has taken");
}

class FailureReportTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/failure_reports_" +
           std::to_string(::getpid()) + "_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
};

FailureReport Report(int rank, int waiting_for, int64_t time) {
  FailureReport report;
  report.rank = rank;
  report.host = "n1";
  report.waiting_for = waiting_for;
  report.time_unix_ms = time;
  return report;
}

TEST_F(FailureReportTest, ComesBackAsItWasWritten) {
  FailureReport report = Report(12, 5, 1'700'000'000'123);
  report.operation = "all-reduce \"x\" \\ \n end";
  report.waiting_for_host = "n2";
  report.seconds = 61.25;
  report.exit_code = 74;
  report.message = "rank 12: stuck";
  ASSERT_TRUE(WriteFailureReport(dir_, report).ok());
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/failure-rank-00012.json"));
  EXPECT_THAT(ReadFailureReports(dir_), testing::ElementsAre(report));
}

TEST_F(FailureReportTest, TheFirstReportOfARankStands) {
  ASSERT_TRUE(WriteFailureReport(dir_, Report(1, 2, 10)).ok());
  EXPECT_TRUE(
      absl::IsAlreadyExists(WriteFailureReport(dir_, Report(1, 3, 11))));
  EXPECT_EQ(ReadFailureReports(dir_)[0].waiting_for, 2);
}

TEST_F(FailureReportTest, DamagedFilesAreRefused) {
  for (const char* text : {"", "{", "{\"rank\": 1}", "{\"rank\": \"x\"}",
                           "{\"a\": \"\\u12\"", "[]"}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeFailureReport(text).status())) << text;
  }
}

TEST(FirstFailingRankTest, FollowsWhoWaitsForWhom) {
  // 0 waits for 1, 1 for 2; 2 is stuck in its own work.
  const std::vector<FailureReport> chain = {Report(0, 1, 10), Report(1, 2, 11),
                                            Report(2, -1, 12)};
  EXPECT_EQ(FirstFailingRank(chain), 2);
  // 3 could not even report.
  const std::vector<FailureReport> silent = {Report(0, 3, 10),
                                             Report(1, 0, 11)};
  EXPECT_EQ(FirstFailingRank(silent), 3);
  const std::vector<FailureReport> circle = {Report(0, 1, 12),
                                             Report(1, 0, 11)};
  EXPECT_EQ(FirstFailingRank(circle), 1);
  EXPECT_EQ(FirstFailingRank({}), std::nullopt);
}

}  // namespace
}  // namespace holdfast::trainer
