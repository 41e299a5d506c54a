// trainer/parallel/gpu_mesh.h: NCCL between the GPUs of a mesh, one rank each.
//
// NCCL takes one rank a GPU; ranks of one process that share a GPU have
// SharedMesh (device_mesh.h), processes that share one the host's way
// (HostedMesh).

#ifndef HOLDFAST_TRAINER_PARALLEL_GPU_MESH_H_
#define HOLDFAST_TRAINER_PARALLEL_GPU_MESH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/device_plugin.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/parallel/nccl_wire.h"

namespace holdfast::trainer {

struct GpuMeshOptions {
  std::string where;  // "rank 3 on n017", for errors.
  int timeout_ms = 600'000;
  Heartbeat* heartbeat = nullptr;  // May be null; outlives the mesh.
  // What neighbour stages send each other beside the stream.
  std::vector<int> pipeline_tags = {};
};

// The second entry point of the plug-in. kFailedPrecondition: it has none, or
// is of another build.
absl::StatusOr<const CollectivesPluginEntry*> FindCollectivesPlugin(
    const kernels::DevicePlugin& plugin);

// Collective over the whole mesh; ids travel by the host's communicators, one
// axis after the other. `device` is the plug-in's; it and `mesh` outlive the
// result. Errors as NcclJob::OpenWire.
absl::StatusOr<DeviceMesh> OpenGpuMesh(const MeshCollectives& mesh,
                                       const kernels::DevicePlugin& plugin,
                                       kernels::Device& device,
                                       const GpuMeshOptions& options);

// An id from rank 0 of `group`. Collective.
absl::StatusOr<NcclId> ShareNcclId(const CollectivesPluginEntry& entry,
                                   Collectives& group);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_GPU_MESH_H_
