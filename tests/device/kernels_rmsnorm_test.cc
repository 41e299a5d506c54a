// RMSNorm on the device against the processor's. Tolerance: sums of a row in
// another order, 2e-6 of the row's largest value; the weight's gradient 2e-6 of
// the sum of its terms' sizes; one rounding to T (kernels/cuda_rmsnorm.h).

#include "kernels/rmsnorm.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::RmsNormArgs;
using kernels::RmsNormBackwardArgs;

constexpr double kTolerance = 2e-6;

class KernelsOnDevice_RmsNorm : public OnDevice {
 protected:
  template <typename T>
  void ExpectNorm(int64_t rows, int64_t hidden, size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " rows " << rows << " hidden " << hidden
                 << " offset " << offset);
    const int64_t count = rows * hidden;
    const auto x = RandomValues<T>(count, seed, 3.0f);
    const auto weight = RandomValues<T>(hidden, seed + 1);
    const auto dy = RandomValues<T>(count, seed + 2);
    const auto residual = RandomValues<T>(count, seed + 3);
    const auto before = RandomValues<float>(hidden, seed + 4);
    std::vector<T> y(x.size()), dx(x.size());
    std::vector<float> rstd(static_cast<size_t>(rows));
    std::vector<float> dweight = before;
    RmsNormArgs<T> forward = {.x = x.data(),
                              .weight = weight.data(),
                              .y = y.data(),
                              .rstd = rstd.data(),
                              .rows = rows,
                              .hidden = hidden};
    RmsNormBackwardArgs<T> backward = {.x = x.data(),
                                       .weight = weight.data(),
                                       .rstd = rstd.data(),
                                       .dy = dy.data(),
                                       .residual = residual.data(),
                                       .dx = dx.data(),
                                       .dweight = dweight.data(),
                                       .rows = rows,
                                       .hidden = hidden};
    kernels::RmsNormForward(CpuStream(), forward);
    kernels::RmsNormBackward(CpuStream(), backward);

    const auto stream = device().NewStream();
    DeviceArray<T> device_x(device(), x, offset);
    DeviceArray<T> device_weight(device(), weight, offset);
    DeviceArray<T> device_y(device(), x, offset);
    DeviceArray<T> device_dy(device(), dy, offset);
    DeviceArray<T> device_residual(device(), residual, offset);
    DeviceArray<float> device_rstd(device(), rstd.size());
    DeviceArray<float> device_dweight(device(), before);
    forward.x = device_y.data();  // In place.
    forward.weight = device_weight.data();
    forward.y = device_y.data();
    forward.rstd = device_rstd.data();
    backward.x = device_x.data();
    backward.weight = device_weight.data();
    backward.rstd = device_rstd.data();
    backward.dy = device_dy.data();
    backward.residual = device_residual.data();
    backward.dx = device_dy.data();  // In place.
    backward.dweight = device_dweight.data();
    kernels::RmsNormForward(*stream, forward);
    kernels::RmsNormBackward(*stream, backward);

    ExpectClose(device_rstd.Get(*stream), rstd, kTolerance,
                [&](size_t i) { return rstd[i]; });
    const auto largest = [&](const std::vector<T>& values) {
      return [&values, hidden, &rstd](size_t i) {
        const auto row = static_cast<int64_t>(i) / hidden;
        return std::max<double>(
            kernels::Largest(values.data() + row * hidden, hidden), rstd[row]);
      };
    };
    // One row's largest value for all of its elements.
    std::vector<double> y_scale, dx_scale;
    for (int64_t r = 0; r < rows; ++r) {
      y_scale.push_back(largest(y)(static_cast<size_t>(r * hidden)));
      dx_scale.push_back(largest(dx)(static_cast<size_t>(r * hidden)));
    }
    ExpectClose(device_y.Get(*stream), y, kTolerance,
                [&](size_t i) { return y_scale[i / hidden]; });
    ExpectClose(device_dy.Get(*stream), dx, kTolerance,
                [&](size_t i) { return dx_scale[i / hidden]; });
    std::vector<double> terms(static_cast<size_t>(hidden), 1.0);
    for (int64_t at = 0; at < count; ++at) {
      terms[at % hidden] +=
          std::abs(ToFloat(dy[at]) * ToFloat(x[at]) * rstd[at / hidden]);
    }
    ExpectClose(device_dweight.Get(*stream), dweight, kTolerance,
                [&](size_t i) { return terms[i]; });
  }
};

TEST_F(KernelsOnDevice_RmsNorm, SmallShapesAndAddresses) {
  for (int64_t hidden : {1, 24, 77, 768, 1032}) {
    ExpectNorm<float>(5, hidden);
    ExpectNorm<Bf16>(5, hidden);
    ExpectNorm<Bf16>(130, hidden, 1);
  }
  ExpectNorm<Bf16>(3, 2048);
  ExpectNorm<Bf16>(0, 64);
}

TEST_F(KernelsOnDevice_RmsNorm, RowsOfModels) {
  ExpectNorm<Bf16>(Many(1000), 768);
  ExpectNorm<float>(Many(500), 2048);
  ExpectNorm<Bf16>(Many(1000), 2048);
  ExpectNorm<Bf16>(Many(300), 4096);
  ExpectNorm<Bf16>(Many(100), 9000);
  ExpectNorm<Bf16>(Many(50), 16384);
}

TEST_F(KernelsOnDevice_RmsNorm, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  for (int64_t hidden : {2048, 4096}) {
    const int64_t rows = (int64_t{1} << 26) / hidden;
    const double count = static_cast<double>(rows * hidden);
    Zeros zeros(device());
    RmsNormArgs<Bf16> forward = {.x = zeros.Of<Bf16>(rows * hidden),
                                 .weight = zeros.Of<Bf16>(hidden),
                                 .y = zeros.Of<Bf16>(rows * hidden),
                                 .rstd = zeros.Of<float>(rows),
                                 .rows = rows,
                                 .hidden = hidden};
    RmsNormBackwardArgs<Bf16> backward = {
        .x = forward.x,
        .weight = forward.weight,
        .rstd = forward.rstd,
        .dy = zeros.Of<Bf16>(rows * hidden),
        .residual = zeros.Of<Bf16>(rows * hidden),
        .dx = zeros.Of<Bf16>(rows * hidden),
        .rows = rows,
        .hidden = hidden};
    const auto stream = device().NewStream();
    const std::string wide = " bf16 " + std::to_string(hidden);
    RecordBandwidth(device(), *stream, "rmsnorm forward" + wide, 4 * count,
                    [&] { kernels::RmsNormForward(*stream, forward); });
    RecordBandwidth(device(), *stream, "rmsnorm backward" + wide, 8 * count,
                    [&] { kernels::RmsNormBackward(*stream, backward); });
    backward.dweight = zeros.Of<float>(hidden);
    RecordBandwidth(
        device(), *stream, "rmsnorm backward" + wide + ", with the weight's",
        12 * count, [&] { kernels::RmsNormBackward(*stream, backward); });
  }
}

}  // namespace
}  // namespace holdfast::tests
