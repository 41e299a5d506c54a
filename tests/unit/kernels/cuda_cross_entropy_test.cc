// The GPU's cross entropy, run on the host, against the CPU's.

#include "kernels/cuda_cross_entropy.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaCrossEntropyTest : public testing::Test {};
TYPED_TEST_SUITE(CudaCrossEntropyTest, ComputeTypes);

struct Shape {
  int64_t rows, columns, valid, stride, offset;
};

const Shape kShapes[] = {{5, 64, 64, 64, 0},       {3, 100, 77, 104, 0},
                         {4, 9000, 8999, 9008, 0}, {2, 513, 500, 513, 0},
                         {6, 40, 33, 48, 1},       {3, 32, 0, 32, 0},
                         {0, 16, 16, 16, 0},       {2, 40001, 40001, 40008, 0}};

template <typename T>
struct Problem {
  Shape shape;
  Placed<T> logits;
  std::vector<int32_t> targets;
  std::vector<float> weights;
  LogitsView<T> view;

  explicit Problem(const Shape& s)
      : shape(s), logits(s.rows * s.stride, s.offset, 1, 6.0f) {
    for (int64_t r = 0; r < s.rows; ++r) {
      // Here, at the last valid column, beyond it, on another rank.
      const int64_t columns[] = {r % std::max<int64_t>(s.valid, 1), s.valid - 1,
                                 s.valid, -20};
      targets.push_back(static_cast<int32_t>(1000 + columns[r % 4]));
      weights.push_back(r == 2 ? 0.0f : 0.25f + 0.125f * static_cast<float>(r));
      for (int64_t c = s.valid; c < s.stride; ++c) {  // Padding and beyond.
        logits.data()[r * s.stride + c] = FromFloat<T>(NAN);
      }
      if (r == 2) logits.data()[r * s.stride] = FromFloat<T>(NAN);
    }
    view = {.data = logits.data(),
            .stride = s.stride,
            .rows = s.rows,
            .columns = s.columns,
            .valid_columns = s.valid,
            .column_begin = 1000};
  }
};

TYPED_TEST(CudaCrossEntropyTest, RowSumsAgreeWithTheCpu) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.valid);
    const Problem<T> p(s);
    std::vector<float> max(s.rows), sum(s.rows), target(s.rows), loss(s.rows);
    CrossEntropyMax(CpuStream(), p.view, max.data());
    CrossEntropySum(CpuStream(), p.view, max.data(), p.targets.data(),
                    sum.data(), target.data());
    CrossEntropyLoss(CpuStream(), s.rows, sum.data(), target.data(),
                     p.weights.data(), loss.data());
    std::vector<float> got_max(s.rows), got_sum(s.rows), got_target(s.rows),
        got_loss(s.rows);
    SameOnAnyGrid([&](const auto& run) {
      RunCrossEntropyMax(p.view, got_max.data(), run);
      RunCrossEntropySum(p.view, got_max.data(), p.targets.data(),
                         got_sum.data(), got_target.data(), run);
      RunCrossEntropyLoss(s.rows, sum.data(), target.data(), p.weights.data(),
                          got_loss.data(), run);
      return BytesOf(got_max, got_sum, got_target, got_loss);
    });
    for (int64_t r = 0; r < s.rows; ++r) {
      if (std::isnan(max[r])) {
        EXPECT_TRUE(std::isnan(got_max[r]) && std::isnan(got_sum[r])) << r;
        EXPECT_EQ(got_loss[r], 0.0f) << r;  // Its weight is zero.
        continue;
      }
      EXPECT_EQ(got_max[r], max[r]) << r;
      EXPECT_NEAR(got_sum[r], sum[r], 2e-6 * sum[r]) << r;
      EXPECT_EQ(got_target[r], target[r]) << r;
      EXPECT_EQ(got_loss[r], loss[r]) << r;
    }
  }
}

TYPED_TEST(CudaCrossEntropyTest, BackwardHasTheCpusBitsInPlaceToo) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.valid);
    const Problem<T> p(s);
    std::vector<float> max(s.rows), sum(s.rows), target(s.rows);
    CrossEntropyMax(CpuStream(), p.view, max.data());
    CrossEntropySum(CpuStream(), p.view, max.data(), p.targets.data(),
                    sum.data(), target.data());
    // Another stride, and what stands between rows stays.
    const int64_t stride = s.columns + 8;
    const Placed<T> before(s.rows * stride, 0, 3);
    Placed<T> expected = before;
    CrossEntropyBackward(CpuStream(), p.view, max.data(), sum.data(),
                         p.targets.data(), p.weights.data(), expected.data(),
                         stride);
    Placed<T> expected_over = p.logits;
    LogitsView<T> over_view = p.view;
    over_view.data = expected_over.data();
    CrossEntropyBackward(CpuStream(), over_view, max.data(), sum.data(),
                         p.targets.data(), p.weights.data(),
                         expected_over.data(), s.stride);
    const std::string got = SameOnAnyGrid([&](const auto& run) {
      Placed<T> dlogits = before;
      RunCrossEntropyBackward(p.view, max.data(), sum.data(), p.targets.data(),
                              p.weights.data(), dlogits.data(), stride, run);
      Placed<T> over = p.logits;
      LogitsView<T> view = p.view;
      view.data = over.data();
      RunCrossEntropyBackward(view, max.data(), sum.data(), p.targets.data(),
                              p.weights.data(), over.data(), s.stride, run);
      return BytesOf(dlogits.all, over.all);
    });
    EXPECT_EQ(got == BytesOf(expected.all, expected_over.all), true);
  }
}

TYPED_TEST(CudaCrossEntropyTest, ANanLogitGivesANanMax) {
  using T = TypeParam;
  for (int64_t at : {0, 5, 300, 511}) {
    Placed<T> logits(512, 0, 1);
    logits.data()[at] = FromFloat<T>(NAN);
    float max = 0.0f;
    RunCrossEntropyMax(LogitsView<T>{.data = logits.data(),
                                     .stride = 512,
                                     .rows = 1,
                                     .columns = 512,
                                     .valid_columns = 512},
                       &max, HostRunner{});
    EXPECT_TRUE(std::isnan(max)) << at;
  }
}

}  // namespace
}  // namespace holdfast::kernels
