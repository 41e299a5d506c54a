// SwiGLU on the device against the processor's. Tolerance: 1e-6 relative, of
// |dout up| for dgate, and one rounding to T (kernels/cuda_swiglu.h).

#include "kernels/swiglu.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::SwigluArgs;
using kernels::SwigluBackwardArgs;

class KernelsOnDevice_Swiglu : public OnDevice {
 protected:
  // gate and up are halves of one matrix, as are their gradients, which are
  // written over them.
  template <typename T>
  void ExpectSwiglu(int64_t rows, int64_t columns, int64_t stride,
                    size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " rows " << rows << " columns "
                 << columns << " offset " << offset);
    const int64_t half = stride / 2;
    auto in = RandomValues<T>(rows * stride, seed, 8.0f);
    if (rows > 2) {
      in[0] = kernels::FromFloat<T>(-100.0f);
      in[stride] = kernels::FromFloat<T>(NAN);
      in[2 * stride] = kernels::FromFloat<T>(40.0f);
    }
    const auto dout = RandomValues<T>(rows * columns, seed + 1);
    std::vector<T> out(static_cast<size_t>(rows * columns));
    auto din = in;
    SwigluArgs<T> forward = {.gate = in.data(),
                             .up = in.data() + half,
                             .in_stride = stride,
                             .out = out.data(),
                             .rows = rows,
                             .columns = columns};
    SwigluBackwardArgs<T> backward = {.gate = din.data(),
                                      .up = din.data() + half,
                                      .in_stride = stride,
                                      .dout = dout.data(),
                                      .dgate = din.data(),
                                      .dup = din.data() + half,
                                      .dstride = stride,
                                      .rows = rows,
                                      .columns = columns};
    kernels::SwigluForward(CpuStream(), forward);
    kernels::SwigluBackward(CpuStream(), backward);

    const auto stream = device().NewStream();
    DeviceArray<T> device_in(device(), in, offset);
    DeviceArray<T> device_dout(device(), dout, offset);
    DeviceArray<T> device_out(device(), out.size());
    forward.gate = backward.gate = backward.dgate = device_in.data();
    forward.up = backward.up = backward.dup = device_in.data() + half;
    backward.dgate = device_in.data();
    backward.dup = device_in.data() + half;
    backward.dout = device_dout.data();
    forward.out = device_out.data();
    kernels::SwigluForward(*stream, forward);
    kernels::SwigluBackward(*stream, backward);
    ExpectClose(device_out.Get(*stream), out, 1e-6,
                [&](size_t i) { return std::abs(ToFloat(out[i])) + 1e-30; });
    ExpectClose(device_in.Get(*stream), din, 1e-6, [&](size_t i) {
      const int64_t row = static_cast<int64_t>(i) / stride;
      const int64_t column = static_cast<int64_t>(i) % stride;
      if (column % half >= columns) return 0.0;  // Beside the halves.
      const double d = ToFloat(dout[row * columns + column % half]);
      const double u = ToFloat(in[row * stride + half + column % half]);
      return std::abs(column < half ? d * u : ToFloat(din[i])) + 1e-30;
    });
  }
};

TEST_F(KernelsOnDevice_Swiglu, SmallShapesAndAddresses) {
  ExpectSwiglu<float>(3, 64, 128);
  ExpectSwiglu<Bf16>(3, 64, 128);
  ExpectSwiglu<Bf16>(1, 1, 2);
  ExpectSwiglu<Bf16>(5, 77, 160);
  ExpectSwiglu<Bf16>(7, 40, 80, 1);
  ExpectSwiglu<Bf16>(0, 8, 16);
  ExpectSwiglu<float>(300, 16, 32);
}

TEST_F(KernelsOnDevice_Swiglu, RowsOfModels) {
  ExpectSwiglu<Bf16>(200, 3072, 6144);
  ExpectSwiglu<float>(50, 8192, 16384);
  ExpectSwiglu<Bf16>(100, 8192, 16384);
}

TEST_F(KernelsOnDevice_Swiglu, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  const int64_t rows = 8192;
  const int64_t columns = 8192;
  const double count = static_cast<double>(rows * columns);
  Zeros zeros(device());
  Bf16* const in = zeros.Of<Bf16>(rows * 2 * columns);
  Bf16* const out = zeros.Of<Bf16>(rows * columns);
  const auto stream = device().NewStream();
  const SwigluArgs<Bf16> forward = {.gate = in,
                                    .up = in + columns,
                                    .in_stride = 2 * columns,
                                    .out = out,
                                    .rows = rows,
                                    .columns = columns};
  RecordBandwidth(device(), *stream, "swiglu forward bf16", 6 * count,
                  [&] { kernels::SwigluForward(*stream, forward); });
  const SwigluBackwardArgs<Bf16> backward = {.gate = in,
                                             .up = in + columns,
                                             .in_stride = 2 * columns,
                                             .dout = out,
                                             .dgate = in,
                                             .dup = in + columns,
                                             .dstride = 2 * columns,
                                             .rows = rows,
                                             .columns = columns};
  RecordBandwidth(device(), *stream, "swiglu backward bf16", 10 * count,
                  [&] { kernels::SwigluBackward(*stream, backward); });
}

}  // namespace
}  // namespace holdfast::tests
