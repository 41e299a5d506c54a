// ckpt/layout/mesh.h: rank number <-> coordinates in the job's grid. Pure.
//
// tp varies fastest, then cp, ep, dp; pp slowest, so that a TP group sits
// inside one server and a pipeline crosses servers:
//
//   rank = tp + TP * (cp + CP * (ep + EP * (dp + DP * pp)))

#ifndef HOLDFAST_CKPT_LAYOUT_MESH_H_
#define HOLDFAST_CKPT_LAYOUT_MESH_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckpt/base/types.h"

namespace holdfast::ckpt {

struct Mesh {
  int tp = 1, cp = 1, ep = 1, pp = 1, dp = 1;

  int world() const { return tp * cp * ep * pp * dp; }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

struct Coordinates {
  int tp = 0, cp = 0, ep = 0, dp = 0, pp = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

// `rank` is in [0, world).
Coordinates CoordinatesOf(const Mesh& mesh, Rank rank);
Rank RankAt(const Mesh& mesh, const Coordinates& at);

// "tp2-pp2-dp2"; cp and ep are named only when above 1.
std::string ToString(const Mesh& mesh);
// The same words in any order, each at most once; what is not named is 1.
// kInvalidArgument names the word that is wrong.
absl::StatusOr<Mesh> ParseMesh(std::string_view text);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_LAYOUT_MESH_H_
