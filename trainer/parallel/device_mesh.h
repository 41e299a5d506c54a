// trainer/parallel/device_mesh.h: the device communicators of one rank's place
// in the mesh.

#ifndef HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_
#define HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_

#include <memory>

#include "kernels/device.h"
#include "trainer/parallel/device_collectives.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/mesh_collectives.h"

namespace holdfast::trainer {

// Ranks and sizes are those of MeshCollectives' communicators.
struct DeviceMesh {
  std::unique_ptr<DeviceCollectives> tp;
  std::unique_ptr<DeviceCollectives> dp;
  std::unique_ptr<DeviceCollectives> pp;
};

// Over the host's communicators, for any device. Both outlive the result.
inline DeviceMesh HostedMesh(const MeshCollectives& mesh,
                             kernels::Device& device) {
  return {NewHostedCollectives(*mesh.tp, device),
          NewHostedCollectives(*mesh.dp, device),
          NewHostedCollectives(*mesh.pp, device)};
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_DEVICE_MESH_H_
