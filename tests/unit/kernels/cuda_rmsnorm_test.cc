// The GPU's RMSNorm, run on the host, against the CPU's within the tolerance
// that kernels/cuda_rmsnorm.h states.

#include "kernels/cuda_rmsnorm.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

constexpr double kTolerance = 2e-6;

template <typename T>
class CudaRmsNormTest : public testing::Test {};
TYPED_TEST_SUITE(CudaRmsNormTest, ComputeTypes);

struct Shape {
  int64_t rows, hidden, offset;
};

// Rows of a warp, of two and of a block; kept and beyond what is kept; single
// elements, by width and by address; several slices of the weight's gradient.
const Shape kShapes[] = {{1, 1, 0},    {5, 24, 0},   {9, 768, 0},  {3, 1000, 1},
                         {4, 1032, 0}, {3, 2048, 0}, {2, 2056, 0}, {2, 9000, 0},
                         {2, 2500, 4}, {300, 40, 0}, {129, 77, 0}};

template <typename T>
struct Problem {
  Shape shape;
  Placed<T> x, weight, dy, residual;
  std::vector<float> rstd, dweight;

  explicit Problem(const Shape& s)
      : shape(s),
        x(s.rows * s.hidden, s.offset, 1, 3.0f),
        weight(s.hidden, 0, 2),
        dy(s.rows * s.hidden, 0, 3),
        residual(s.rows * s.hidden, 0, 4),
        rstd(s.rows),
        dweight(RandomValues<float>(s.hidden, 5)) {}

  RmsNormArgs<T> Forward(T* y, float* out_rstd) const {
    return {.x = x.data(),
            .weight = weight.data(),
            .y = y,
            .rstd = out_rstd,
            .rows = shape.rows,
            .hidden = shape.hidden,
            .eps = 1e-5f};
  }
  RmsNormBackwardArgs<T> Backward(const T* with, const T* add, T* dx,
                                  float* out_dweight) const {
    return {.x = x.data(),
            .weight = weight.data(),
            .rstd = rstd.data(),
            .dy = with,
            .residual = add,
            .dx = dx,
            .dweight = out_dweight,
            .rows = shape.rows,
            .hidden = shape.hidden};
  }
};

template <typename T, typename Runner>
void RunBackward(const RmsNormBackwardArgs<T>& args, const Runner& run) {
  std::vector<float> scratch(static_cast<size_t>(RmsNormBackwardScratch(args)),
                             NAN);
  RunRmsNormBackward(args, scratch.data(), run);
}

TYPED_TEST(CudaRmsNormTest, ForwardAgreesWithTheCpu) {
  using T = TypeParam;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.hidden);
    Problem<T> p(shape);
    const int64_t count = shape.rows * shape.hidden;
    std::vector<T> expected(count);
    std::vector<T> y(count);
    std::vector<float> rstd(shape.rows);
    RmsNormForward(CpuStream(), p.Forward(expected.data(), p.rstd.data()));
    SameOnAnyGrid(
        [&](const auto& run) {
          RunRmsNormForward(p.Forward(y.data(), rstd.data()), run);
          return BytesOf(y, rstd);
        },
        shape.rows < 100);
    for (int64_t r = 0; r < shape.rows; ++r) {
      ASSERT_NEAR(rstd[r], p.rstd[r], kTolerance * p.rstd[r]);
      const T* row = expected.data() + r * shape.hidden;
      ExpectWithin(y.data() + r * shape.hidden, row, shape.hidden, kTolerance,
                   Largest(row, shape.hidden));
    }
    // In place.
    Placed<T> over = p.x;
    auto args = p.Forward(over.data(), rstd.data());
    args.x = over.data();
    RunRmsNormForward(args, HostRunner{HostOrder::kBackward});
    EXPECT_TRUE(std::equal(y.begin(), y.end(), over.data()));
  }
}

TYPED_TEST(CudaRmsNormTest, BackwardAgreesWithTheCpu) {
  using T = TypeParam;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.hidden);
    Problem<T> p(shape);
    const int64_t count = shape.rows * shape.hidden;
    std::vector<T> expected(count);
    RmsNormForward(CpuStream(), p.Forward(expected.data(), p.rstd.data()));
    for (const bool with_residual : {false, true}) {
      const T* residual = with_residual ? p.residual.data() : nullptr;
      std::vector<float> expected_dweight = p.dweight;
      RmsNormBackward(CpuStream(),
                      p.Backward(p.dy.data(), residual, expected.data(),
                                 expected_dweight.data()));
      std::vector<T> dx(count);
      std::vector<float> dweight;
      SameOnAnyGrid(
          [&](const auto& run) {
            dweight = p.dweight;
            RunBackward(
                p.Backward(p.dy.data(), residual, dx.data(), dweight.data()),
                run);
            return BytesOf(dx, dweight);
          },
          shape.rows < 100 && with_residual);
      std::vector<double> terms(shape.hidden, 0.0);
      for (int64_t r = 0; r < shape.rows; ++r) {
        const T* row = expected.data() + r * shape.hidden;
        ExpectWithin(dx.data() + r * shape.hidden, row, shape.hidden,
                     kTolerance,
                     std::max(Largest(row, shape.hidden), double{p.rstd[r]}));
        for (int64_t i = 0; i < shape.hidden; ++i) {
          const int64_t at = r * shape.hidden + i;
          terms[i] += std::abs(ToFloat(p.dy.data()[at]) *
                               ToFloat(p.x.data()[at]) * p.rstd[r]);
        }
      }
      for (int64_t i = 0; i < shape.hidden; ++i) {
        ASSERT_NEAR(dweight[i], expected_dweight[i],
                    kTolerance * (terms[i] + 1.0))
            << i;
      }
      // dx over dy, and over the residual; without a weight gradient, dx is
      // the same.
      Placed<T> over = p.dy;
      dweight = p.dweight;
      RunBackward(
          p.Backward(over.data(), residual, over.data(), dweight.data()),
          HostRunner{});
      EXPECT_TRUE(std::equal(dx.begin(), dx.end(), over.data()));
      if (with_residual) {
        over = p.residual;
        RunBackward(p.Backward(p.dy.data(), over.data(), over.data(), nullptr),
                    HostRunner{});
        EXPECT_TRUE(std::equal(dx.begin(), dx.end(), over.data()));
      }
    }
  }
}

TYPED_TEST(CudaRmsNormTest, ManyRowsMakeLongerSlicesNotMore) {
  using T = TypeParam;
  EXPECT_EQ(NormSlices(1), 1);
  EXPECT_EQ(NormSlices(129), 2);
  EXPECT_EQ(NormSlices(128 * 512), 512);
  EXPECT_EQ(NormSlices(70000), 511);
  EXPECT_LE(NormSlices(int64_t{1} << 33), 512);
  Problem<T> p({70000, 8, 0});
  std::vector<T> dx(70000 * 8);
  RmsNormForward(CpuStream(), p.Forward(dx.data(), p.rstd.data()));
  std::vector<float> expected = p.dweight;
  std::vector<float> got = p.dweight;
  RmsNormBackward(CpuStream(),
                  p.Backward(p.dy.data(), nullptr, dx.data(), expected.data()));
  RunBackward(p.Backward(p.dy.data(), nullptr, dx.data(), got.data()),
              HostRunner{});
  // The processor adds 70,000 terms one by one: its own error is the larger.
  ExpectWithin(got.data(), expected.data(), 8, kTolerance, 35000.0);
}

TYPED_TEST(CudaRmsNormTest, ANanStaysInItsRow) {
  using T = TypeParam;
  Problem<T> p({4, 64, 0});
  p.x.data()[2 * 64 + 5] = FromFloat<T>(NAN);
  std::vector<T> y(4 * 64);
  RunRmsNormForward(p.Forward(y.data(), p.rstd.data()), HostRunner{});
  for (int64_t i = 0; i < 4 * 64; ++i) {
    EXPECT_EQ(std::isnan(ToFloat(y[i])), i / 64 == 2) << i;
  }
}

TYPED_TEST(CudaRmsNormTest, NoRowsTouchNothing) {
  using T = TypeParam;
  Problem<T> p({0, 64, 0});
  const std::vector<float> before = p.dweight;
  RunRmsNormForward(p.Forward(nullptr, nullptr), HostRunner{});
  RunBackward(p.Backward(nullptr, nullptr, nullptr, p.dweight.data()),
              HostRunner{});
  EXPECT_EQ(p.dweight, before);
}

}  // namespace
}  // namespace holdfast::kernels
