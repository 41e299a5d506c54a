// trainer/run_device.cc: opens it and looks at what it has.

#include "trainer/run_device.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/communication_memory.h"
#include "trainer/parallel/gpu_mesh.h"
#include "trainer/step_pipeline.h"

namespace holdfast::trainer {
namespace {

// FNV-1a, so that all hosts' builds agree.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Renames what the step thread is doing; deadlines are the outer scopes'.
class HeartbeatWaits final : public kernels::WaitListener {
 public:
  HeartbeatWaits(kernels::Device& device, Heartbeat* heartbeat)
      : device_(device), heartbeat_(heartbeat) {
    device_.AddWaitListener(this);
  }
  ~HeartbeatWaits() override { device_.RemoveWaitListener(this); }

  void OnWaiting(std::string_view what) override {
    if (scope_.has_value()) return;
    scope_.emplace(heartbeat_, absl::StrFormat("GPU: %s", what));
  }
  void OnWaitOver() override { scope_.reset(); }

 private:
  kernels::Device& device_;
  Heartbeat* const heartbeat_;
  std::optional<Heartbeat::Scope> scope_;
};

}  // namespace

void WatchWaits(RunDevice& device, Heartbeat* heartbeat, int64_t limit_s) {
  device.device->SetWaitLimit(std::chrono::seconds(limit_s) +
                              std::chrono::minutes(1));
  device.waits = std::make_unique<HeartbeatWaits>(*device.device, heartbeat);
}

absl::StatusOr<RunDevice> OpenRunDevice(const Config& config, int local_rank) {
  RunDevice run;
  if (config.device != DeviceChoice::kCuda) {
    run.device = kernels::NewCpuDevice();
    return run;
  }
  HF_ASSIGN_OR_RETURN(const kernels::DevicePlugin* const plugin,
                      kernels::LoadDevicePlugin("cuda"));
  HF_ASSIGN_OR_RETURN(const int count, plugin->DeviceCount());
  HF_ASSIGN_OR_RETURN(run.device, plugin->Open(local_rank % count));
  // After opening, so that what the driver takes for itself is gone from what
  // is free.
  HF_ASSIGN_OR_RETURN(run.info, plugin->Info(local_rank % count));
  run.plugin = plugin;
  return run;
}

absl::Status CountSharing(Collectives& world, const std::string& host,
                          RunDevice& device) {
  const auto ranks = static_cast<size_t>(world.size());
  std::vector<uint64_t> all(ranks);
  std::vector<int64_t> first(ranks), count(ranks, sizeof(uint64_t));
  for (size_t i = 0; i < ranks; ++i) {
    first[i] = static_cast<int64_t>(i * sizeof(uint64_t));
  }
  uint64_t& mine = all[static_cast<size_t>(world.rank())];
  mine = device.on_gpu() ? HashOf(host + " " + device.info.bus) : 0;
  HF_RETURN_IF_ERROR(
      world.AllGatherV(Bytes(std::span<uint64_t>(all)), first, count));
  device.ranks_sharing = 1;
  if (!device.on_gpu()) return absl::OkStatus();
  device.ranks_sharing = 0;
  for (const uint64_t other : all) device.ranks_sharing += other == mine;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceMesh>> OpenRunMesh(
    const MeshCollectives& mesh, const RunDevice& device,
    const std::string& host, int64_t timeout_s, Heartbeat* heartbeat) {
  Collectives& world = *mesh.world;
  if (!device.on_gpu() || world.size() == 1) return nullptr;
  int64_t sharing = device.ranks_sharing;
  HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<int64_t>(&sharing, 1)));
  if (sharing > 1) {
    if (world.rank() == 0) {
      HF_LOG_WARNING(
          "%d ranks share a GPU, and NCCL takes one: what they exchange goes "
          "through the host's memory",
          sharing);
    }
    return nullptr;
  }
  GpuMeshOptions options;
  options.where = absl::StrFormat("rank %d on %s", world.rank(), host);
  options.timeout_ms =
      static_cast<int>(std::min<int64_t>(1000 * timeout_s, 1 << 30));
  options.heartbeat = heartbeat;
  options.pipeline_tags = {Pipeline::kForwardTag, Pipeline::kBackwardTag};
  HF_ASSIGN_OR_RETURN(DeviceMesh opened, OpenGpuMesh(mesh, *device.plugin,
                                                     *device.device, options));
  return std::make_unique<DeviceMesh>(std::move(opened));
}

absl::Status CheckGpuMemory(const RunDevice& device, const MemoryPlan& plan,
                            int rank, const std::string& host) {
  const int64_t beside = plan.gpu_scratch + kGpuReserveBytes;
  if (plan.total() + beside <= device.info.bytes_free / device.ranks_sharing) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "rank %d needs %.2f GB (weights %.2f, gradients %.2f, optimizer %.2f, "
      "partial sums %.2f, activations %.2f, buffers %.2f, communication %.2f) "
      "and %.2f GB for kernels and libraries, GPU %d of %s (%s) has %.2f of "
      "%.2f GB free for %d ranks; use "
      "more GPUs, a smaller "
      "batch.micro_seqs or a smaller model",
      rank, plan.total() / 1e9, plan.weights / 1e9, plan.gradients / 1e9,
      plan.optimizer / 1e9, plan.live_sums / 1e9, plan.activations / 1e9,
      plan.buffers / 1e9, plan.communication / 1e9, beside / 1e9,
      device.info.ordinal, host, device.info.name,
      static_cast<double>(device.info.bytes_free) / 1e9,
      static_cast<double>(device.info.bytes_total) / 1e9,
      device.ranks_sharing));
}

absl::Status CheckOverlap(const RunDevice& device, const OverlapConfig& overlap,
                          int rank, const std::string& host) {
  if (!overlap.grad_reduce && !overlap.param_gather) return absl::OkStatus();
  if (device.info.multiprocessors >= kNcclMultiprocessors)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank %d: %s needs a GPU with %d multiprocessors, on which all kernels "
      "of "
      "NCCL that may wait at once fit beside each other; GPU %d of %s (%s) has "
      "%d; set overlap.grad_reduce and overlap.param_gather to false",
      rank,
      overlap.grad_reduce ? "overlap.grad_reduce" : "overlap.param_gather",
      kNcclMultiprocessors, device.info.ordinal, host, device.info.name,
      device.info.multiprocessors));
}

absl::Status CheckPinnedMemory(int64_t pinned, int64_t available, int rank,
                               const std::string& host) {
  if (available <= 0 || pinned <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "rank %d shares its GPU, so what it exchanges goes through %.2f GB of "
      "pinned memory of %s, which has %.2f GB free for it; give each rank a "
      "GPU "
      "of its own, or use fewer ranks a host",
      rank, pinned / 1e9, host, available / 1e9));
}

absl::StatusOr<int64_t> GpuBytesTaken(const RunDevice& device) {
  HF_ASSIGN_OR_RETURN(const kernels::DeviceInfo now,
                      device.plugin->Info(device.info.ordinal));
  return device.info.bytes_free - now.bytes_free;
}

std::string DescribeDevice(const RunDevice& device) {
  if (!device.on_gpu()) return "processor";
  std::string text = absl::StrFormat(
      "GPU %d (%s, %.1f GB, %s)", device.info.ordinal, device.info.name,
      static_cast<double>(device.info.bytes_total) / 1e9, device.info.bus);
  if (device.ranks_sharing > 1) {
    absl::StrAppendFormat(&text, ", shared by %d ranks", device.ranks_sharing);
  }
  return text;
}

}  // namespace holdfast::trainer
