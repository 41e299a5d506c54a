// Each rank must find itself at its own coordinate of each axis, among the
// ranks that differ from it on that axis only.

#include "trainer/parallel/mesh_collectives.h"

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

TEST(MeshCollectivesTest, EachAxisJoinsTheRanksThatDifferOnItOnly) {
  for (const ckpt::Mesh mesh : {ckpt::Mesh{.tp = 2, .pp = 2, .dp = 2},
                                ckpt::Mesh{.tp = 1, .pp = 2, .dp = 3},
                                ckpt::Mesh{.tp = 3, .pp = 1, .dp = 1}}) {
    SCOPED_TRACE(ckpt::ToString(mesh));
    const absl::Status status =
        RunInprocRanks(mesh.world(), [&](Collectives& world) -> absl::Status {
          HF_ASSIGN_OR_RETURN(const MeshCollectives mine,
                              SplitMesh(world, mesh));
          const auto sum_of_ranks =
              [&](Collectives& axis) -> absl::StatusOr<int64_t> {
            int64_t sum = world.rank();
            HF_RETURN_IF_ERROR(axis.AllReduceSum(std::span<int64_t>(&sum, 1)));
            return sum;
          };
          const auto expected = [&](auto set) {
            int64_t sum = 0;
            for (int r = 0; r < mesh.world(); ++r) {
              ckpt::Coordinates other =
                  ckpt::CoordinatesOf(mesh, ckpt::Rank{r});
              if (set(other) == mine.at) sum += r;
            }
            return sum;
          };
          HF_ASSIGN_OR_RETURN(const int64_t tp, sum_of_ranks(*mine.tp));
          HF_ASSIGN_OR_RETURN(const int64_t dp, sum_of_ranks(*mine.dp));
          HF_ASSIGN_OR_RETURN(const int64_t pp, sum_of_ranks(*mine.pp));
          const bool right = tp == expected([&](ckpt::Coordinates c) {
                               c.tp = mine.at.tp;
                               return c;
                             }) &&
                             dp == expected([&](ckpt::Coordinates c) {
                               c.dp = mine.at.dp;
                               return c;
                             }) &&
                             pp == expected([&](ckpt::Coordinates c) {
                               c.pp = mine.at.pp;
                               return c;
                             });
          return right ? absl::OkStatus()
                       : absl::InternalError(
                             absl::StrFormat("rank %d: tp %d dp %d pp %d",
                                             world.rank(), tp, dp, pp));
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(MeshCollectivesTest, SaysWhichNumbersDoNotFit) {
  const absl::Status status =
      RunInprocRanks(3, [](Collectives& world) -> absl::Status {
        return SplitMesh(world, {.tp = 2, .pp = 2, .dp = 1}).status();
      });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("has 4 ranks, 3 were started"));
}

}  // namespace
}  // namespace holdfast::trainer
