// trainer/parallel/device_mesh.h: the device communicators of one rank's place
// in the mesh.

#ifndef HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_
#define HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/status_macros.h"
#include "kernels/device.h"
#include "trainer/parallel/communication_memory.h"
#include "trainer/parallel/device_collectives.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/parallel/nccl_wire.h"
#include "trainer/parallel/shared_wire.h"
#include "trainer/parallel/wire_collectives.h"

namespace holdfast::trainer {

// Ranks and sizes are those of MeshCollectives' communicators.
struct DeviceMesh {
  // Of NCCL; what follows uses them.
  std::unique_ptr<WaitNames> names;
  std::unique_ptr<NcclJob> job;

  std::unique_ptr<DeviceCollectives> tp;
  std::unique_ptr<DeviceCollectives> dp;
  std::unique_ptr<DeviceCollectives> pp;

  // Before an end because of an error: what is enqueued and waits for other
  // ranks ends. Other ways of exchange wait on the host, where a rank that
  // gives up is found.
  void GiveUp(const absl::Status& why) {
    if (job != nullptr) job->GiveUp(why);
  }
};

// Over the host's communicators, for any device. Both outlive the result.
inline DeviceMesh HostedMesh(const MeshCollectives& mesh,
                             kernels::Device& device) {
  DeviceMesh made;
  made.tp = NewHostedCollectives(*mesh.tp, device);
  made.dp = NewHostedCollectives(*mesh.dp, device);
  made.pp = NewHostedCollectives(*mesh.pp, device);
  return made;
}

// For ranks that are threads and share `device`: `mesh` is of an InprocWorld.
// Takes `scratch_bytes` for a TP group and at most 1 MiB for the others, and
// the point-to-point messages of the host's communicators.
inline absl::StatusOr<DeviceMesh> SharedMesh(
    const MeshCollectives& mesh, kernels::Device& device,
    size_t scratch_bytes = kWireScratchBytes) {
  const size_t little = std::min(scratch_bytes, kLittleScratchBytes);
  const auto over = [&](Collectives& host, size_t bytes) {
    return NewWireCollectives(NewSharedWire(host, device), device, bytes);
  };
  DeviceMesh made;
  HF_ASSIGN_OR_RETURN(made.tp, over(*mesh.tp, scratch_bytes));
  HF_ASSIGN_OR_RETURN(made.dp, over(*mesh.dp, little));
  HF_ASSIGN_OR_RETURN(made.pp, over(*mesh.pp, little));
  return made;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_
