// trainer/parallel/mesh_collectives.cc: three splits of the world.

#include "trainer/parallel/mesh_collectives.h"

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {

absl::StatusOr<MeshCollectives> SplitMesh(Collectives& world,
                                          const ckpt::Mesh& mesh) {
  if (mesh.world() != world.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("mesh %s has %d ranks, %d were started",
                        ckpt::ToString(mesh), mesh.world(), world.size()));
  }
  if (mesh.cp != 1 || mesh.ep != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("mesh %s: context and expert parallelism have no "
                        "collectives yet; set cp and ep to 1",
                        ckpt::ToString(mesh)));
  }
  MeshCollectives made;
  made.mesh = mesh;
  made.at = ckpt::CoordinatesOf(mesh, ckpt::Rank{world.rank()});
  made.world = &world;
  // A group's color is the rank of its member 0 on the axis.
  const auto color = [&](ckpt::Coordinates first) {
    return ckpt::Index(ckpt::RankAt(mesh, first));
  };
  ckpt::Coordinates tp_first = made.at;
  ckpt::Coordinates dp_first = made.at;
  ckpt::Coordinates pp_first = made.at;
  tp_first.tp = 0;
  dp_first.dp = 0;
  pp_first.pp = 0;
  HF_ASSIGN_OR_RETURN(made.tp, world.Split(color(tp_first), made.at.tp, "tp"));
  HF_ASSIGN_OR_RETURN(made.dp, world.Split(color(dp_first), made.at.dp, "dp"));
  HF_ASSIGN_OR_RETURN(made.pp, world.Split(color(pp_first), made.at.pp, "pp"));
  HF_CHECK(made.tp->rank() == made.at.tp && made.tp->size() == mesh.tp &&
               made.dp->rank() == made.at.dp && made.dp->size() == mesh.dp &&
               made.pp->rank() == made.at.pp && made.pp->size() == mesh.pp,
           "rank %d of mesh %s was split wrongly", world.rank(),
           ckpt::ToString(mesh));
  return made;
}

}  // namespace holdfast::trainer
