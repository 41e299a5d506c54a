// trainer/run_device.h: the device that a rank trains on.
//
// device = cuda: the rank's number among those of its host chooses the GPU,
// wrapping round where there are fewer GPUs than ranks; ranks that share one
// divide its memory, and a line at the start says so.

#ifndef HOLDFAST_TRAINER_RUN_DEVICE_H_
#define HOLDFAST_TRAINER_RUN_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/device_plugin.h"
#include "trainer/config.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/model/memory_plan.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/mesh_collectives.h"

namespace holdfast::trainer {

struct RunDevice {
  std::unique_ptr<kernels::Device> device;
  // Of WatchWaits.
  std::unique_ptr<kernels::WaitListener> waits;
  // Of device = cuda only; null elsewhere.
  const kernels::DevicePlugin* plugin = nullptr;
  kernels::DeviceInfo info;
  // Ranks of the job whose device is this very one; 1 on the CPU.
  int ranks_sharing = 1;

  bool on_gpu() const { return plugin != nullptr; }
};

// Opens the device that `config` asks for. `local_rank` counts from 0 on each
// host. Errors as kernels::LoadDevicePlugin and DevicePlugin::Open.
absl::StatusOr<RunDevice> OpenRunDevice(const Config& config, int local_rank);

// From now on the calling thread's waits for the device have a name in
// `heartbeat`, which may be null and outlives `device`; and any thread's end,
// at the latest a minute after `limit_s`, with an error of the device. The
// minute is the watchdog's, who says more.
void WatchWaits(RunDevice& device, Heartbeat* heartbeat, int64_t limit_s);

// Fills ranks_sharing. Collective, after all ranks have opened theirs.
absl::Status CountSharing(Collectives& world, const std::string& host,
                          RunDevice& device);

// How the ranks' device memory travels: by NCCL where every rank has a GPU of
// its own, else null: by the host. Collective; `mesh`, `device` and `heartbeat`
// outlive the result. `timeout_s` is for setting NCCL up.
absl::StatusOr<std::unique_ptr<DeviceMesh>> OpenRunMesh(
    const MeshCollectives& mesh, const RunDevice& device,
    const std::string& host, int64_t timeout_s, Heartbeat* heartbeat);

// What libraries and kernels take beside the plan, of each rank: cuBLASLt's
// workspace, code that is loaded late, scratch of kernels but attention's,
// which the plan has apart (MemoryPlan::gpu_scratch).
inline constexpr int64_t kGpuReserveBytes = int64_t{512} << 20;

// OK when a rank's plan, its kernels' scratch and the reserve fit in its share
// of the GPU's free memory. Before any rank allocates.
absl::Status CheckGpuMemory(const RunDevice& device, const MemoryPlan& plan,
                            int rank, const std::string& host);

// OK unless something travels beside the step (`overlap`) over NCCL on a GPU
// that cannot hold all kernels of NCCL that may wait at once: they could wait
// for each other for ever (trainer/DESIGN.md).
absl::Status CheckOverlap(const RunDevice& device, const OverlapConfig& overlap,
                          int rank, const std::string& host);

// OK when what a rank's messages take of the host's memory on the way between
// processes that share a GPU (StepRunner::PlanPinned) fits in its share of what
// is free; `available` <= 0: unknown.
absl::Status CheckPinnedMemory(int64_t pinned, int64_t available, int rank,
                               const std::string& host);

// What has gone from the GPU's free memory since it was opened, whoever took
// it.
absl::StatusOr<int64_t> GpuBytesTaken(const RunDevice& device);

// "GPU 0 (NVIDIA H200, 150.8 GB, 0000:3b:00.0), shared by 4 ranks"; "processor"
std::string DescribeDevice(const RunDevice& device);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_RUN_DEVICE_H_
