// ckpt/layout/mesh.cc: rank number <-> coordinates, and how a mesh is spelled.

#include "ckpt/layout/mesh.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {

Coordinates CoordinatesOf(const Mesh& mesh, Rank rank) {
  int rest = Index(rank);
  HF_CHECK(rest >= 0 && rest < mesh.world(), "rank %d of a mesh of %d", rest,
           mesh.world());
  Coordinates at;
  at.tp = rest % mesh.tp;
  rest /= mesh.tp;
  at.cp = rest % mesh.cp;
  rest /= mesh.cp;
  at.ep = rest % mesh.ep;
  rest /= mesh.ep;
  at.dp = rest % mesh.dp;
  at.pp = rest / mesh.dp;
  return at;
}

Rank RankAt(const Mesh& mesh, const Coordinates& at) {
  HF_CHECK(at.tp >= 0 && at.tp < mesh.tp && at.cp >= 0 && at.cp < mesh.cp &&
               at.ep >= 0 && at.ep < mesh.ep && at.dp >= 0 && at.dp < mesh.dp &&
               at.pp >= 0 && at.pp < mesh.pp,
           "coordinates tp %d, cp %d, ep %d, pp %d, dp %d of mesh %s", at.tp,
           at.cp, at.ep, at.pp, at.dp, ToString(mesh));
  return Rank{
      at.tp +
      mesh.tp *
          (at.cp + mesh.cp * (at.ep + mesh.ep * (at.dp + mesh.dp * at.pp)))};
}

std::string ToString(const Mesh& mesh) {
  std::string text = absl::StrFormat("tp%d", mesh.tp);
  if (mesh.cp > 1) absl::StrAppendFormat(&text, "-cp%d", mesh.cp);
  if (mesh.ep > 1) absl::StrAppendFormat(&text, "-ep%d", mesh.ep);
  absl::StrAppendFormat(&text, "-pp%d-dp%d", mesh.pp, mesh.dp);
  return text;
}

absl::StatusOr<Mesh> ParseMesh(std::string_view text) {
  const auto wrong = [&](std::string_view word, std::string_view why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mesh '%s': '%s' %s; write it as tp2-pp2-dp2", text, word, why));
  };
  Mesh mesh;
  struct Axis {
    std::string_view name;
    int* size;
    bool seen = false;
  };
  std::array<Axis, 5> axes = {{{"tp", &mesh.tp},
                               {"cp", &mesh.cp},
                               {"ep", &mesh.ep},
                               {"pp", &mesh.pp},
                               {"dp", &mesh.dp}}};
  int64_t world = 1;
  for (std::string_view rest = text;;) {
    const size_t dash = rest.find('-');
    const std::string_view word = rest.substr(0, dash);
    Axis* axis = nullptr;
    for (Axis& candidate : axes) {
      if (word.substr(0, 2) == candidate.name) axis = &candidate;
    }
    if (axis == nullptr) return wrong(word, "is not one of tp, cp, ep, pp, dp");
    if (axis->seen) return wrong(word, "is named twice");
    axis->seen = true;
    const char* const first = word.data() + 2;
    const char* const last = word.data() + word.size();
    const auto [end, error] = std::from_chars(first, last, *axis->size);
    if (error != std::errc{} || end != last || *axis->size < 1) {
      return wrong(word, "needs a whole number from 1 up");
    }
    world *= *axis->size;
    if (world > std::numeric_limits<int32_t>::max()) {
      return wrong(word, "makes more ranks than 2147483647");
    }
    if (dash == std::string_view::npos) return mesh;
    rest.remove_prefix(dash + 1);
  }
}

}  // namespace holdfast::ckpt
