// AdamW against the textbook in double, and against itself cut into slices.

#include "kernels/adamw.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class AdamWTest : public testing::Test {};
TYPED_TEST_SUITE(AdamWTest, ComputeTypes);

template <typename T>
struct State {
  std::vector<T> weight;
  std::vector<float> master, moment1, moment2;

  explicit State(int64_t count)
      : weight(count),
        master(RandomValues<float>(count, 1)),
        moment1(count),
        moment2(count) {}

  // Updates elements [begin, end) with the whole model's gradient.
  void Step(const std::vector<float>& grad, int64_t step, int64_t begin,
            int64_t end) {
    AdamW(CpuStream(), AdamWArgs<T>{.weight = weight.data() + begin,
                                    .master = master.data() + begin,
                                    .moment1 = moment1.data() + begin,
                                    .moment2 = moment2.data() + begin,
                                    .grad = grad.data() + begin,
                                    .count = end - begin,
                                    .step = step,
                                    .grad_scale = 0.5f,
                                    .lr = 1e-2f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f});
  }
};

TYPED_TEST(AdamWTest, FollowsTheTextbookInDouble) {
  const int64_t count = 1000;
  State<TypeParam> state(count);
  std::vector<double> w(state.master.begin(), state.master.end());
  std::vector<double> m(count), v(count);
  for (int64_t step = 1; step <= 20; ++step) {
    const auto grad = RandomValues<float>(count, 10 + step);
    state.Step(grad, step, 0, count);
    for (int64_t i = 0; i < count; ++i) {
      const double g = grad[i] * 0.5;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      const double m_hat = m[i] / (1 - std::pow(0.9, step));
      const double v_hat = v[i] / (1 - std::pow(0.95, step));
      w[i] -= 1e-2 * 0.1 * w[i];
      w[i] -= 1e-2 * m_hat / (std::sqrt(v_hat) + 1e-8);
    }
  }
  ExpectNear(state.master, w, 2e-6);
  ExpectNear(state.moment1, m, 1e-6);
  ExpectNear(state.moment2, v, 1e-6);
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(state.weight[i], FromFloat<TypeParam>(state.master[i]));
  }
}

// Slices that start anywhere, so that every element passes through vector
// bodies and scalar ends of the loop.
TYPED_TEST(AdamWTest, IsBlindToHowTheModelIsCut) {
  const int64_t count = 40000;
  State<TypeParam> whole(count);
  State<TypeParam> cut(count);
  for (int64_t step = 1; step <= 3; ++step) {
    const auto grad = RandomValues<float>(count, step);
    whole.Step(grad, step, 0, count);
    for (int64_t begin = 0, length = 1; begin < count;) {
      const int64_t end = std::min(count, begin + length);
      cut.Step(grad, step, begin, end);
      begin = end;
      length = length % 97 + 1 + (length == 50 ? 17000 : 0);
    }
  }
  EXPECT_TRUE(SameBits(whole.master, cut.master));
  EXPECT_TRUE(SameBits(whole.moment1, cut.moment1));
  EXPECT_TRUE(SameBits(whole.moment2, cut.moment2));
  EXPECT_TRUE(SameBits(whole.weight, cut.weight));
}

TYPED_TEST(AdamWTest, ThreadCountNeverChangesABit) {
  const int64_t count = 70001;
  const auto grad = RandomValues<float>(count, 3);
  ExpectSameBitsOnAnyThreadCount([&] {
    State<TypeParam> state(count);
    state.Step(grad, 1, 0, count);
    return state.master;
  });
}

TEST(AdamWEdgeTest, AZeroGradientAtTheFirstStepOnlyDecays) {
  State<float> state(5);
  const auto before = state.master;
  state.Step(std::vector<float>(5), 1, 0, 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FLOAT_EQ(state.master[i], before[i] * (1.0f - 1e-3f));
  }
}

TEST(AdamWDeathTest, StepsCountFromOne) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  State<float> state(1);
  EXPECT_DEATH(state.Step({1.0f}, 0, 0, 1), "it counts from 1");
}

}  // namespace
}  // namespace holdfast::kernels
