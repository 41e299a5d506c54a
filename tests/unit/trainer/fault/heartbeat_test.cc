// Scopes nest, and deadlines go with them.

#include "trainer/fault/heartbeat.h"

#include <atomic>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

class ManualClock final : public ckpt::Clock {
 public:
  absl::Duration Monotonic() const override { return now_; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now_; }
  void Sleep(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Duration now_ = absl::Seconds(1000);
};

TEST(HeartbeatTest, NamesTheInnermostOperation) {
  ManualClock clock;
  Heartbeat heartbeat(clock);
  EXPECT_EQ(heartbeat.Read().operation, "");
  EXPECT_FALSE(heartbeat.Read().has_deadline);
  {
    const Heartbeat::Scope step(&heartbeat, "step 7", absl::Seconds(60));
    clock.Sleep(absl::Seconds(5));
    {
      const Heartbeat::Scope reduce(&heartbeat, "all-reduce sum dp");
      clock.Sleep(absl::Seconds(2));
      const Heartbeat::Reading reading = heartbeat.Read();
      EXPECT_EQ(reading.operation, "all-reduce sum dp");
      EXPECT_EQ(reading.running, absl::Seconds(2));
      EXPECT_TRUE(reading.has_deadline);
      EXPECT_EQ(reading.remaining, absl::Seconds(53));  // The step's.
    }
    EXPECT_EQ(heartbeat.Read().operation, "step 7");
    EXPECT_EQ(heartbeat.Read().running, absl::Seconds(7));
  }
  EXPECT_EQ(heartbeat.Read().operation, "");
  EXPECT_FALSE(heartbeat.Read().has_deadline);
}

TEST(HeartbeatTest, AScopeWithItsOwnDeadlineSuspendsTheOuterOne) {
  ManualClock clock;
  Heartbeat heartbeat(clock);
  const Heartbeat::Scope step(&heartbeat, "step 7", absl::Seconds(60));
  clock.Sleep(absl::Seconds(50));
  {
    const Heartbeat::Scope save(&heartbeat, "wait for save", absl::Hours(1));
    clock.Sleep(absl::Minutes(30));
    EXPECT_EQ(heartbeat.Read().remaining, absl::Minutes(30));
  }
  EXPECT_EQ(heartbeat.Read().remaining, absl::Seconds(10));
}

TEST(HeartbeatTest, LongNamesAreCutAndInfiniteTimeoutsNeverExpire) {
  ManualClock clock;
  Heartbeat heartbeat(clock);
  const Heartbeat::Scope scope(&heartbeat, std::string(100, 'x'),
                               absl::InfiniteDuration());
  EXPECT_EQ(heartbeat.Read().operation, std::string(64, 'x'));
  EXPECT_FALSE(heartbeat.Read().has_deadline);
}

TEST(HeartbeatTest, WithoutAHeartbeatAScopeDoesNothing) {
  const Heartbeat::Scope scope(nullptr, "nothing", absl::Seconds(1));
}

TEST(HeartbeatTest, AReaderNeverSeesHalfAnOperation) {
  Heartbeat heartbeat;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const std::string seen = heartbeat.Read().operation;
      if (seen.empty()) continue;
      // One letter, as often as the name is long.
      EXPECT_EQ(seen, std::string(seen[0] == 'a' ? 60 : 20, seen[0]));
    }
  });
  const std::string a(60, 'a');
  const std::string b(20, 'b');
  for (int i = 0; i < 20'000; ++i) {
    const Heartbeat::Scope outer(&heartbeat, a);
    const Heartbeat::Scope inner(&heartbeat, b, absl::Seconds(9));
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace holdfast::trainer
