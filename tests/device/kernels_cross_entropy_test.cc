// Cross entropy on the device against the processor's. Tolerance: the maximum
// is equal; the sum within 2e-6, a gradient within 2e-6 of its row's weight and
// one rounding to T (kernels/cuda_cross_entropy.h).

#include "kernels/cross_entropy.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::LogitsView;

class KernelsOnDevice_CrossEntropy : public OnDevice {
 protected:
  template <typename T>
  void ExpectRows(int64_t rows, int64_t columns, int64_t valid, int64_t stride,
                  size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " rows " << rows << " valid " << valid
                 << " of " << columns << " offset " << offset);
    auto logits = RandomValues<T>(rows * stride, seed, 6.0f);
    std::vector<int32_t> targets;
    std::vector<float> weights;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t column[] = {(r * 31) % std::max<int64_t>(valid, 1),
                                valid - 1, valid, -20};
      targets.push_back(static_cast<int32_t>(1000 + column[r % 4]));
      weights.push_back(r % 7 == 2 ? 0.0f : 0.5f + 0.25f * (r % 3));
      for (int64_t c = valid; c < stride; ++c) {  // Padding and beyond.
        logits[r * stride + c] = kernels::FromFloat<T>(NAN);
      }
      if (r == 2) logits[r * stride] = kernels::FromFloat<T>(NAN);
    }
    LogitsView<T> view = {.data = logits.data(),
                          .stride = stride,
                          .rows = rows,
                          .columns = columns,
                          .valid_columns = valid,
                          .column_begin = 1000};
    const auto n = static_cast<size_t>(rows);
    std::vector<float> max(n), sum(n), target(n), loss(n);
    auto dlogits = logits;
    kernels::CrossEntropyMax(CpuStream(), view, max.data());
    kernels::CrossEntropySum(CpuStream(), view, max.data(), targets.data(),
                             sum.data(), target.data());
    kernels::CrossEntropyLoss(CpuStream(), rows, sum.data(), target.data(),
                              weights.data(), loss.data());
    LogitsView<T> over = view;
    over.data = dlogits.data();
    kernels::CrossEntropyBackward(CpuStream(), over, max.data(), sum.data(),
                                  targets.data(), weights.data(),
                                  dlogits.data(), stride);

    const auto stream = device().NewStream();
    DeviceArray<T> device_logits(device(), logits, offset);
    DeviceArray<int32_t> device_targets(device(), targets);
    DeviceArray<float> device_weights(device(), weights);
    DeviceArray<float> device_max(device(), n);
    DeviceArray<float> device_sum(device(), n);
    DeviceArray<float> device_target(device(), n);
    DeviceArray<float> device_loss(device(), n);
    view.data = device_logits.data();
    kernels::CrossEntropyMax(*stream, view, device_max.data());
    kernels::CrossEntropySum(*stream, view, device_max.data(),
                             device_targets.data(), device_sum.data(),
                             device_target.data());
    kernels::CrossEntropyLoss(*stream, rows, device_sum.data(),
                              device_target.data(), device_weights.data(),
                              device_loss.data());
    kernels::CrossEntropyBackward(*stream, view, device_max.data(),
                                  device_sum.data(), device_targets.data(),
                                  device_weights.data(), device_logits.data(),
                                  stride);
    ExpectClose(device_max.Get(*stream), max, 0.0, [](size_t) { return 0.0; });
    ExpectClose(device_sum.Get(*stream), sum, 2e-6,
                [&](size_t i) { return std::abs(sum[i]); });
    ExpectClose(device_target.Get(*stream), target, 0.0,
                [](size_t) { return 0.0; });
    ExpectClose(device_loss.Get(*stream), loss, 2e-6,
                [&](size_t i) { return 1.0 + std::abs(target[i]); });
    ExpectClose(device_logits.Get(*stream), dlogits, 4e-6, [&](size_t i) {
      return static_cast<double>(weights[i / static_cast<size_t>(stride)]);
    });
  }
};

TEST_F(KernelsOnDevice_CrossEntropy, SmallShapesAndAddresses) {
  ExpectRows<float>(5, 64, 64, 64);
  ExpectRows<Bf16>(5, 64, 64, 64);
  ExpectRows<Bf16>(3, 100, 77, 104);
  ExpectRows<Bf16>(2, 513, 500, 513);
  ExpectRows<Bf16>(6, 40, 33, 48, 1);
  ExpectRows<Bf16>(3, 32, 0, 32);
  ExpectRows<Bf16>(0, 16, 16, 16);
}

TEST_F(KernelsOnDevice_CrossEntropy, VocabulariesOfModels) {
  ExpectRows<Bf16>(30, 50304, 50257, 50304);
  ExpectRows<float>(10, 50304, 50257, 50304);
  ExpectRows<Bf16>(10, 128256, 128256, 128256);
}

TEST_F(KernelsOnDevice_CrossEntropy, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  const int64_t rows = 2048;
  const int64_t columns = 128256;
  const double count = static_cast<double>(rows * columns);
  Zeros zeros(device());
  Bf16* const logits = zeros.Of<Bf16>(rows * columns);
  const LogitsView<Bf16> view = {.data = logits,
                                 .stride = columns,
                                 .rows = rows,
                                 .columns = columns,
                                 .valid_columns = columns};
  float* const max = zeros.Of<float>(rows);
  float* const sum = zeros.Of<float>(rows);
  float* const target = zeros.Of<float>(rows);
  int32_t* const targets = zeros.Of<int32_t>(rows);
  DeviceArray<float> weights(device(),
                             std::vector<float>(static_cast<size_t>(rows), 1));
  const auto stream = device().NewStream();
  RecordBandwidth(device(), *stream, "cross entropy max bf16", 2 * count,
                  [&] { kernels::CrossEntropyMax(*stream, view, max); });
  RecordBandwidth(device(), *stream, "cross entropy sum bf16", 2 * count, [&] {
    kernels::CrossEntropySum(*stream, view, max, targets, sum, target);
  });
  RecordBandwidth(
      device(), *stream, "cross entropy backward bf16", 4 * count, [&] {
        kernels::CrossEntropyBackward(*stream, view, max, sum, targets,
                                      weights.data(), logits, columns);
      });
}

}  // namespace
}  // namespace holdfast::tests
