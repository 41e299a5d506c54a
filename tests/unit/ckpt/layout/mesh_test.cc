// Rank numbers and coordinates, there and back.

#include "ckpt/layout/mesh.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

TEST(MeshTest, EveryRankHasItsOwnCoordinatesAndComesBack) {
  const Mesh mesh{.tp = 2, .cp = 3, .ep = 2, .pp = 3, .dp = 5};
  for (int rank = 0; rank < mesh.world(); ++rank) {
    EXPECT_EQ(RankAt(mesh, CoordinatesOf(mesh, Rank{rank})), Rank{rank});
  }
}

TEST(MeshTest, TpVariesFastestAndPpSlowest) {
  const Mesh mesh{.tp = 2, .pp = 2, .dp = 2};
  EXPECT_EQ(CoordinatesOf(mesh, Rank{1}), (Coordinates{.tp = 1}));
  EXPECT_EQ(CoordinatesOf(mesh, Rank{2}), (Coordinates{.dp = 1}));
  EXPECT_EQ(CoordinatesOf(mesh, Rank{4}), (Coordinates{.pp = 1}));
}

TEST(MeshTest, SpellsAndReadsItsName) {
  const Mesh mesh{.tp = 8, .cp = 2, .pp = 4, .dp = 40};
  EXPECT_EQ(ToString(mesh), "tp8-cp2-pp4-dp40");
  EXPECT_EQ(*ParseMesh("tp8-cp2-pp4-dp40"), mesh);
  EXPECT_EQ(*ParseMesh("dp40-tp8-pp4-cp2"), mesh);
  EXPECT_EQ(*ParseMesh("dp3"), (Mesh{.dp = 3}));
  EXPECT_EQ(ToString(Mesh{}), "tp1-pp1-dp1");
}

TEST(MeshTest, RefusesAWordItDoesNotKnowByName) {
  for (const auto& [text, word] :
       std::vector<std::pair<std::string_view, std::string_view>>{
           {"tp2-xp2", "'xp2' is not one of"},
           {"", "'' is not one of"},
           {"tp2-", "'' is not one of"},
           {"tp2-tp2", "'tp2' is named twice"},
           {"tp0", "'tp0' needs a whole number"},
           {"tp", "'tp' needs a whole number"},
           {"tp2x", "'tp2x' needs a whole number"},
           {"tp99999999999", "'tp99999999999' needs a whole number"},
           {"tp2147483647-dp2", "'dp2' makes more ranks"}}) {
    const auto mesh = ParseMesh(text);
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(mesh.status().ToString(), HasSubstr(std::string(word)));
  }
}

}  // namespace
}  // namespace holdfast::ckpt
