// Rotary embedding against the plain formula; its backward as the transpose.

#include "kernels/rope.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class RopeTest : public testing::Test {};
TYPED_TEST_SUITE(RopeTest, ComputeTypes);

constexpr float kTheta = 10000.0f;

// Two sequences of 9 positions from position 5, 3 heads of 8, in rows of 30.
template <typename T>
struct Problem {
  std::vector<T> x = RandomValues<T>(2 * 9 * 30, 1);
  std::vector<float> table = std::vector<float>(RopeTableSize(9, 8));
  RopeArgs<T> args;

  Problem() {
    RopeFillTable(CpuStream(), table.data(), 5, 9, 8, kTheta);
    args = {.x = x.data(),
            .stride = 30,
            .sequences = 2,
            .positions = 9,
            .heads = 3,
            .head_dim = 8,
            .table = table.data()};
  }
};

TYPED_TEST(RopeTest, TurnsPairsHalfAHeadApart) {
  Problem<TypeParam> p;
  const auto before = p.x;
  RopeForward(CpuStream(), p.args);
  std::vector<double> expected(before.size());
  for (size_t i = 0; i < before.size(); ++i) expected[i] = ToFloat(before[i]);
  for (int row = 0; row < 18; ++row) {
    for (int head = 0; head < 3; ++head) {
      for (int i = 0; i < 4; ++i) {
        const double angle = (5 + row % 9) * std::pow(kTheta, -2.0 * i / 8);
        const int low = row * 30 + head * 8 + i;
        const double a = ToFloat(before[low]);
        const double b = ToFloat(before[low + 4]);
        expected[low] = a * std::cos(angle) - b * std::sin(angle);
        expected[low + 4] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  // The six columns beyond the heads are as they were.
  ExpectNear(p.x, expected, kRounding<TypeParam> + 3e-6);
}

TEST(RopeInverseTest, BackwardTurnsBack) {
  Problem<float> p;
  const auto before = p.x;
  RopeForward(CpuStream(), p.args);
  RopeBackward(CpuStream(), p.args);
  ExpectNear(p.x, before, 1e-6);
}

// A turn is linear: its gradient is its transpose.
TEST(RopeInverseTest, BackwardIsTheTransposeOfForward) {
  Problem<float> forward;
  Problem<float> backward;
  backward.x = RandomValues<float>(2 * 9 * 30, 2);
  backward.args.x = backward.x.data();
  const auto x = forward.x;
  const auto dy = backward.x;
  RopeForward(CpuStream(), forward.args);
  RopeBackward(CpuStream(), backward.args);
  double left = 0.0;
  double right = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    left += double{forward.x[i]} * dy[i];
    right += double{x[i]} * backward.x[i];
  }
  EXPECT_NEAR(left, right, 1e-5);
}

TEST(RopeTableTest, StartsAnywhere) {
  std::vector<float> whole(RopeTableSize(20, 6));
  std::vector<float> part(RopeTableSize(5, 6));
  RopeFillTable(CpuStream(), whole.data(), 0, 20, 6, kTheta);
  RopeFillTable(CpuStream(), part.data(), 12, 5, 6, kTheta);
  EXPECT_EQ(std::memcmp(part.data(), whole.data() + 12 * 6,
                        part.size() * sizeof(float)),
            0);
}

TYPED_TEST(RopeTest, ThreadCountNeverChangesABit) {
  std::vector<float> table(RopeTableSize(100, 16));
  RopeFillTable(CpuStream(), table.data(), 0, 100, 16, kTheta);
  const auto before = RandomValues<TypeParam>(200 * 32, 3);
  ExpectSameBitsOnAnyThreadCount([&] {
    auto x = before;
    RopeForward(CpuStream(), RopeArgs<TypeParam>{.x = x.data(),
                                                 .stride = 32,
                                                 .sequences = 2,
                                                 .positions = 100,
                                                 .heads = 2,
                                                 .head_dim = 16,
                                                 .table = table.data()});
    return x;
  });
}

}  // namespace
}  // namespace holdfast::kernels
