// trainer/parallel/mesh_collectives.h: the communicators of one rank's place in
// the mesh.

#ifndef HOLDFAST_TRAINER_PARALLEL_MESH_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_MESH_COLLECTIVES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ckpt/layout/mesh.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

// In each communicator a rank's number is its coordinate on that axis.
struct MeshCollectives {
  ckpt::Mesh mesh;
  ckpt::Coordinates at;
  Collectives* world = nullptr;  // Borrowed; outlives this.
  std::unique_ptr<Collectives> tp;
  std::unique_ptr<Collectives> dp;
  std::unique_ptr<Collectives> pp;
};

// Collective over `world`. kInvalidArgument when the mesh is not as large as
// the world, or uses an axis that has no communicator yet (cp, ep).
absl::StatusOr<MeshCollectives> SplitMesh(Collectives& world,
                                          const ckpt::Mesh& mesh);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_MESH_COLLECTIVES_H_
