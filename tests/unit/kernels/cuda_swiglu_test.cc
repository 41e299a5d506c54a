// The GPU's SwiGLU, run on the host, against the CPU's. On the host exponential
// and quotient are the CPU's own, so that all but those two is compared to the
// bit.

#include "kernels/cuda_swiglu.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaSwigluTest : public testing::Test {};
TYPED_TEST_SUITE(CudaSwigluTest, ComputeTypes);

struct Shape {
  int64_t rows, columns, in_stride, dstride, offset;
};

const Shape kShapes[] = {{3, 64, 128, 128, 0}, {1, 1, 2, 2, 0},
                         {5, 77, 160, 154, 0}, {4, 2056, 4112, 4112, 0},
                         {7, 40, 80, 96, 1},   {0, 8, 16, 16, 0},
                         {300, 16, 32, 32, 0}};

TYPED_TEST(CudaSwigluTest, HasTheCpusBitsBothWays) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns);
    // gate and up are halves of one matrix.
    const int64_t up = s.in_stride / 2;
    Placed<T> in(s.rows * s.in_stride, s.offset, 1, 8.0f);
    if (s.rows > 2) {
      in.data()[0] = FromFloat<T>(-100.0f);
      in.data()[s.in_stride] = FromFloat<T>(NAN);
      in.data()[2 * s.in_stride] = FromFloat<T>(INFINITY);
    }
    const Placed<T> dout(s.rows * s.columns, 0, 2);
    const Placed<T> gradient(s.rows * s.dstride, 0, 3);
    const auto forward = [&](T* out) {
      return SwigluArgs<T>{.gate = in.data(),
                           .up = in.data() + up,
                           .in_stride = s.in_stride,
                           .out = out,
                           .rows = s.rows,
                           .columns = s.columns};
    };
    const auto backward = [&](const T* gate, T* dgate, int64_t dstride) {
      return SwigluBackwardArgs<T>{.gate = gate,
                                   .up = gate + up,
                                   .in_stride = s.in_stride,
                                   .dout = dout.data(),
                                   .dgate = dgate,
                                   .dup = dgate + dstride / 2,
                                   .dstride = dstride,
                                   .rows = s.rows,
                                   .columns = s.columns};
    };
    std::vector<T> out(s.rows * s.columns);
    Placed<T> expected = gradient;
    Placed<T> expected_over = in;
    SwigluForward(CpuStream(), forward(out.data()));
    SwigluBackward(CpuStream(),
                   backward(in.data(), expected.data(), s.dstride));
    SwigluBackward(CpuStream(), backward(expected_over.data(),
                                         expected_over.data(), s.in_stride));
    const std::string got = SameOnAnyGrid([&](const auto& run) {
      std::vector<T> o(out.size());
      Placed<T> d = gradient;
      Placed<T> over = in;
      RunSwigluForward(forward(o.data()), run);
      RunSwigluBackward(backward(in.data(), d.data(), s.dstride), run);
      RunSwigluBackward(backward(over.data(), over.data(), s.in_stride), run);
      return BytesOf(o, d.all, over.all);
    });
    EXPECT_EQ(got == BytesOf(out, expected.all, expected_over.all), true);
  }
}

}  // namespace
}  // namespace holdfast::kernels
