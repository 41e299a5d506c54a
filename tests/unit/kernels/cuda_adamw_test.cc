// The GPU's AdamW, run on the host, against the CPU's: the same bits, step
// after step.

#include "kernels/cuda_adamw.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaAdamWTest : public testing::Test {};
TYPED_TEST_SUITE(CudaAdamWTest, ComputeTypes);

template <typename T>
struct State {
  Placed<T> weight;
  Placed<float> master, moment1, moment2;

  State(int64_t count, int64_t offset)
      : weight(count, offset, 1),
        master(count, 0, 2, 3.0f),
        moment1(count, 0, 3, 0.0f),
        moment2(count, 0, 4, 0.0f) {}

  AdamWArgs<T> Args(const Placed<float>& grad, int64_t step) {
    return {.weight = weight.data(),
            .master = master.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .grad = grad.data(),
            .count = grad.size(),
            .step = step,
            .grad_scale = 0.37f,
            .lr = 3e-3f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = step % 2 == 0 ? 0.1f : 0.0f};
  }
  std::string Bytes() const {
    return BytesOf(weight.all, master.all, moment1.all, moment2.all);
  }
};

TYPED_TEST(CudaAdamWTest, HasTheCpusBitsStepAfterStep) {
  for (int64_t count : {0, 1, 5, 1024, 20003}) {
    for (int64_t offset : {0, 1, 4}) {
      SCOPED_TRACE(testing::Message() << count << " from " << offset);
      const auto gradient = [&](int64_t step) {
        // From 1e-12 to 1e3, so that eps, moments and rounding all count.
        Placed<float> grad(count, 0, 10 + step);
        for (int64_t i = 0; i < count; ++i) {
          grad.data()[i] *= std::pow(10.0f, static_cast<float>(i % 16 - 12));
        }
        return grad;
      };
      State<TypeParam> cpu(count, offset);
      for (int64_t step = 1; step <= 4; ++step) {
        AdamW(CpuStream(), cpu.Args(gradient(step), step));
      }
      const std::string got = SameOnAnyGrid([&](const auto& run) {
        State<TypeParam> state(count, offset);
        for (int64_t step = 1; step <= 4; ++step) {
          RunAdamW(state.Args(gradient(step), step), run);
        }
        return state.Bytes();
      });
      EXPECT_EQ(got == cpu.Bytes(), true);
    }
  }
}

TYPED_TEST(CudaAdamWTest, ANanGradientReachesItsElementAlone) {
  State<TypeParam> state(64, 0);
  Placed<float> grad(64, 0, 5);
  grad.data()[9] = std::numeric_limits<float>::quiet_NaN();
  RunAdamW(state.Args(grad, 1), HostRunner{});
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(std::isnan(state.master.data()[i]), i == 9) << i;
    EXPECT_EQ(std::isnan(ToFloat(state.weight.data()[i])), i == 9) << i;
  }
}

}  // namespace
}  // namespace holdfast::kernels
