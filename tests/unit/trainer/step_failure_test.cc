// A step that fails on one rank while its neighbours go on: what they still
// send must find no memory that is gone. AddressSanitizer looks.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/step_rig.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using tests::RunOptions;
using tests::TinySource;

std::unique_ptr<kernels::Device> Fake() {
  kernels::FakeDeviceOptions options;
  options.device_bytes = size_t{64} << 20;
  auto device = kernels::NewFakeDevice(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return std::move(device).value();
}

// Calls `before` with the step and the microbatch that is asked for.
class Hooked final : public MicrobatchSource {
 public:
  using Before = std::function<absl::Status(int64_t step, int64_t microbatch)>;

  Hooked(const ModelConfig& model, Before before)
      : source_(model, /*micro_seqs=*/1, /*seed=*/1),
        before_(std::move(before)) {}

  void BeginStep(int64_t step) {
    step_ = step;
    source_.BeginStep(step);
  }
  int64_t counting() const { return source_.CountingTokens(8); }
  absl::StatusOr<Microbatch> Get(int64_t microbatch) override {
    HF_RETURN_IF_ERROR(before_(step_, microbatch));
    return source_.Get(microbatch);
  }

 private:
  TinySource source_;
  const Before before_;
  int64_t step_ = 0;
};

class StepFailureTest : public testing::TestWithParam<std::string> {};

TEST_P(StepFailureTest, NeighboursSendToNobodyWhoHasGone) {
  RunOptions options;
  options.model = tests::TinyModel(/*tied=*/false);
  options.mesh.pp = 2;
  const auto layout = tests::LayoutOf(options);
  std::unique_ptr<kernels::Device> shared;
  if (GetParam() == "Shared") shared = Fake();
  std::atomic<bool> gone = false;

  const auto run = [&](Collectives& world) -> absl::Status {
    HF_ASSIGN_OR_RETURN(MeshCollectives mesh, SplitMesh(world, options.mesh));
    const std::unique_ptr<kernels::Device> own =
        GetParam() == "Cpu" ? kernels::NewCpuDevice() : Fake();
    kernels::Device& device = shared == nullptr ? *own : *shared;
    std::optional<DeviceMesh> device_mesh = HostedMesh(mesh, device);
    if (shared != nullptr) {
      HF_ASSIGN_OR_RETURN(device_mesh, SharedMesh(mesh, device));
    }
    StepOptions step = tests::StepOptionsOf(options, *layout);
    step.mesh = &mesh;
    step.device = &device;
    step.clock = &ckpt::RealClock();
    step.device_mesh = &*device_mesh;
    HF_ASSIGN_OR_RETURN(auto runner, StepRunner::Create(step));
    HF_RETURN_IF_ERROR(runner->Initialise(1));

    // The first stage has sent microbatch 2, and has asked for the gradient of
    // 2 ahead. The last stage has received 2.
    Hooked source(options.model, [&](int64_t step, int64_t microbatch) {
      if (step == 2 && world.rank() == 0 && microbatch == 3) {
        return absl::DataLossError("microbatch 3 is damaged");
      }
      while (step == 2 && world.rank() == 1 && microbatch == 2 && !gone) {
        std::this_thread::yield();
      }
      return absl::OkStatus();
    });
    source.BeginStep(1);
    HF_RETURN_IF_ERROR(
        runner->RunStep(1, source.counting(), source, nullptr).status());
    source.BeginStep(2);
    const absl::Status status =
        runner->RunStep(2, source.counting(), source, nullptr).status();
    if (world.rank() == 1) return status;

    EXPECT_EQ(status, absl::DataLossError("microbatch 3 is damaged"));
    runner.reset();
    device_mesh.reset();
    gone = true;
    // Until the other rank, which has sent its gradient, waits too.
    EXPECT_FALSE(world.Barrier().ok());
    return status;
  };
  std::array<absl::Status, 2> seen;
  const absl::Status first = RunInprocRanks(2, [&](Collectives& world) {
    seen[world.rank()] = run(world);
    gone = true;
    return seen[world.rank()];
  });
  EXPECT_FALSE(first.ok());
  EXPECT_TRUE(absl::IsDataLoss(seen[0])) << seen[0];
  EXPECT_FALSE(seen[1].ok());
}

INSTANTIATE_TEST_SUITE_P(Meshes, StepFailureTest,
                         testing::Values("Cpu", "Hosted", "Shared"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace holdfast::trainer
