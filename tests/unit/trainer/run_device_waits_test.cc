// That a wait for a device has the name of what is waited for and the deadline
// of the scope around it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/run_device.h"

namespace holdfast::trainer {
namespace {

using std::chrono::milliseconds;

// Keeps who listens and how long it may wait; does nothing else.
class ListeningDevice final : public kernels::Device {
 public:
  struct Kept {
    std::vector<kernels::WaitListener*> listeners;
    milliseconds limit{0};
  };
  explicit ListeningDevice(Kept* kept) : kept_(kept) {}

  std::string_view name() const override { return "listening"; }
  absl::StatusOr<kernels::Buffer> Allocate(kernels::MemorySpace,
                                           size_t) override {
    return absl::ResourceExhaustedError("not for this test");
  }
  void Free(const kernels::Buffer&) override {}
  std::unique_ptr<kernels::Stream> NewStream() override { return nullptr; }
  void Copy(const kernels::Buffer&, const kernels::Buffer&,
            kernels::Stream&) override {}
  kernels::Event Record(kernels::Stream&) override {
    return kernels::Event::kPassed;
  }
  void WaitFor(kernels::Stream&, kernels::Event) override {}
  bool Query(kernels::Event) override { return true; }
  void Sync(kernels::Event) override {}
  void Sync(kernels::Stream&) override {}
  void SetWaitLimit(milliseconds limit) override { kept_->limit = limit; }
  void AddWaitListener(kernels::WaitListener* listener) override {
    kept_->listeners.push_back(listener);
  }
  void RemoveWaitListener(kernels::WaitListener* listener) override {
    std::erase(kept_->listeners, listener);
  }

 private:
  Kept* const kept_;
};

TEST(RunDeviceWaitsTest, AWaitIsNamedWithinTheDeadlineOfTheStep) {
  ListeningDevice::Kept kept;
  Heartbeat heartbeat;
  {
    RunDevice run;
    run.device = std::make_unique<ListeningDevice>(&kept);
    WatchWaits(run, &heartbeat, /*limit_s=*/300);
    EXPECT_EQ(kept.limit, milliseconds(360'000)) << "the watchdog comes first";
    ASSERT_EQ(kept.listeners.size(), 1u);
    const Heartbeat::Scope step(&heartbeat, "step 7", absl::Seconds(300));
    for (int i = 0; i < 3; ++i) {
      kept.listeners[0]->OnWaiting("work up to AttentionForward");
      const Heartbeat::Reading reading = heartbeat.Read();
      EXPECT_EQ(reading.operation, "GPU: work up to AttentionForward");
      EXPECT_TRUE(reading.has_deadline);
      EXPECT_LE(reading.remaining, absl::Seconds(300));
    }
    kept.listeners[0]->OnWaitOver();
    EXPECT_EQ(heartbeat.Read().operation, "step 7");
    RunDevice moved = std::move(run);
    EXPECT_EQ(kept.listeners.size(), 1u);
  }
  EXPECT_TRUE(kept.listeners.empty()) << "before the device goes";
}

TEST(RunDeviceWaitsTest, WithoutAHeartbeatOnlyTheLimitIsSet) {
  ListeningDevice::Kept kept;
  RunDevice run;
  run.device = std::make_unique<ListeningDevice>(&kept);
  WatchWaits(run, nullptr, 1);
  kept.listeners[0]->OnWaiting("anything");
  kept.listeners[0]->OnWaitOver();
  EXPECT_EQ(kept.limit, milliseconds(61'000));
}

}  // namespace
}  // namespace holdfast::trainer
