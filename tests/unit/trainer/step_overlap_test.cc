// That overlap.* puts what travels on streams of its own, in buckets. That no
// bit changes is step_bits_test's matter.

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/support/step_rig.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using kernels::Stream;
using tests::RunOptions;
using tests::TinySource;

// The collectives underneath, and on which streams they were asked.
class Watched final : public DeviceCollectives {
 public:
  explicit Watched(std::unique_ptr<DeviceCollectives> below)
      : below_(std::move(below)) {}

  std::vector<const Stream*> exchanges, gathers;

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  absl::Status AllReduceSum(std::span<float> values, Stream& stream) override {
    return below_->AllReduceSum(values, stream);
  }
  absl::Status AllReduceMax(std::span<float> values, Stream& stream) override {
    return below_->AllReduceMax(values, stream);
  }
  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override {
    gathers.push_back(&stream);
    return below_->AllGatherV(all, first, count, stream);
  }
  absl::Status Exchange(std::span<const Transfer> transfers,
                        Stream& stream) override {
    exchanges.push_back(&stream);
    return below_->Exchange(transfers, stream);
  }
  absl::StatusOr<RequestId> Isend(std::span<const std::byte> data, int to,
                                  int tag, Stream& stream) override {
    return below_->Isend(data, to, tag, stream);
  }
  absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from, int tag,
                                  Stream& stream) override {
    return below_->Irecv(data, from, tag, stream);
  }
  absl::Status Wait(RequestId request, Stream& stream) override {
    return below_->Wait(request, stream);
  }
  void Abandon(RequestId request, Stream& stream) override {
    below_->Abandon(request, stream);
  }
  absl::Status Sync(Stream& stream) override { return below_->Sync(stream); }

 private:
  const std::unique_ptr<DeviceCollectives> below_;
};

struct Seen {
  size_t exchanges = 0, gathers = 0;
  size_t exchange_streams = 0, gather_streams = 0;
};

// One step of two members, as member 0 sees it.
Seen OneStep(const OverlapConfig& overlap) {
  RunOptions options;
  options.model = tests::TinyModel(/*tied=*/false);
  options.mesh.dp = 2;
  options.overlap = overlap;
  const auto layout = tests::LayoutOf(options);
  Seen seen;
  const absl::Status status =
      RunInprocRanks(2, [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(MeshCollectives mesh,
                            SplitMesh(world, options.mesh));
        const auto device = kernels::NewCpuDevice();
        DeviceMesh device_mesh = HostedMesh(mesh, *device);
        auto watched = std::make_unique<Watched>(std::move(device_mesh.dp));
        Watched& dp = *watched;
        device_mesh.dp = std::move(watched);
        StepOptions step_options = tests::StepOptionsOf(options, *layout);
        step_options.mesh = &mesh;
        step_options.device = device.get();
        step_options.clock = &ckpt::RealClock();
        step_options.device_mesh = &device_mesh;
        HF_ASSIGN_OR_RETURN(const auto runner,
                            StepRunner::Create(step_options));
        HF_RETURN_IF_ERROR(runner->Initialise(1));
        dp.exchanges.clear();
        dp.gathers.clear();
        TinySource source(options.model, options.micro_seqs, 1);
        source.BeginStep(1);
        HF_RETURN_IF_ERROR(
            runner->RunStep(1, source.CountingTokens(8), source, nullptr)
                .status());
        if (world.rank() != 0) return absl::OkStatus();
        const auto different = [](const std::vector<const Stream*>& streams) {
          return std::set<const Stream*>(streams.begin(), streams.end()).size();
        };
        seen = {dp.exchanges.size(), dp.gathers.size(), different(dp.exchanges),
                different(dp.gathers)};
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return seen;
}

TEST(StepOverlapTest, OffEverythingGoesAtOnceOnOneStream) {
  const Seen seen = OneStep({});
  EXPECT_EQ(seen.exchanges, 1u);
  EXPECT_EQ(seen.gathers, 1u);
}

TEST(StepOverlapTest, GradientsGoInBucketsOfFinishedParts) {
  // Embedding, two layers, and the head with its norm.
  const Seen pages = OneStep({.grad_reduce = true, .bucket_kb = 4});
  EXPECT_EQ(pages.exchanges, 4u);
  EXPECT_EQ(pages.exchange_streams, 1u);
  EXPECT_EQ(pages.gathers, 1u);
  // One bucket for all: sent when the last part is finished.
  EXPECT_EQ(OneStep({.grad_reduce = true}).exchanges, 1u);
}

TEST(StepOverlapTest, WeightsAreGatheredInParts) {
  const Seen seen = OneStep({.param_gather = true, .bucket_kb = 16});
  EXPECT_GE(seen.gathers, 4u);
  EXPECT_EQ(seen.gather_streams, 1u);
  EXPECT_EQ(seen.exchanges, 1u);
}

}  // namespace
}  // namespace holdfast::trainer
