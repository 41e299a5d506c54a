// The GPU's rotary embedding, run on the host, against the CPU's: the same
// bits, and nothing beside the heads is touched.

#include "kernels/cuda_rope.h"

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaRopeTest : public testing::Test {};
TYPED_TEST_SUITE(CudaRopeTest, ComputeTypes);

struct Shape {
  int64_t sequences, positions, heads, head_dim, stride, offset;
};

const Shape kShapes[] = {
    {2, 7, 3, 64, 3 * 64 + 16, 0}, {1, 3, 2, 2, 5, 0},
    {3, 5, 1, 128, 128, 0},        {1, 4, 2, 48, 100, 0},
    {2, 3, 5, 20, 104, 1},         {1, 2, 40, 128, 5120, 8},
    {0, 4, 2, 16, 32, 0},          {2, 4, 0, 16, 32, 0}};

TYPED_TEST(CudaRopeTest, HasTheCpusBitsBothWays) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.heads << " heads of " << s.head_dim);
    std::vector<float> table(RopeTableSize(s.positions, s.head_dim));
    RopeFillTable(CpuStream(), table.data(), 1000, s.positions, s.head_dim,
                  10000.0f);
    const Placed<T> x(s.sequences * s.positions * s.stride, s.offset, 1);
    for (const float direction : {1.0f, -1.0f}) {
      const auto args = [&](Placed<T>& turned) {
        return RopeArgs<T>{.x = turned.data(),
                           .stride = s.stride,
                           .sequences = s.sequences,
                           .positions = s.positions,
                           .heads = s.heads,
                           .head_dim = s.head_dim,
                           .table = table.data()};
      };
      Placed<T> expected = x;
      direction > 0 ? RopeForward(CpuStream(), args(expected))
                    : RopeBackward(CpuStream(), args(expected));
      const std::string got = SameOnAnyGrid([&](const auto& run) {
        Placed<T> turned = x;
        RunRope(args(turned), direction, run);
        return BytesOf(turned.all);
      });
      EXPECT_EQ(got == BytesOf(expected.all), true);
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels
