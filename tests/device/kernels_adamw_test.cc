// AdamW on the device: the processor's bits, step after step.

#include "kernels/adamw.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::AdamWArgs;

class KernelsOnDevice_AdamW : public OnDevice {
 protected:
  template <typename T>
  static AdamWArgs<T> Args(T* weight, float* master, float* moment1,
                           float* moment2, const float* grad, int64_t count,
                           int64_t step) {
    return {.weight = weight,
            .master = master,
            .moment1 = moment1,
            .moment2 = moment2,
            .grad = grad,
            .count = count,
            .step = step,
            .grad_scale = 0.37f,
            .lr = 3e-3f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = step % 2 == 0 ? 0.1f : 0.0f};
  }

  template <typename T>
  void ExpectSteps(int64_t count, size_t offset) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " count " << count
                                    << " offset " << offset);
    auto master = RandomValues<float>(count, seed, 3.0f);
    std::vector<float> moment1(master.size()), moment2(master.size());
    std::vector<T> weight(master.size());
    DeviceArray<T> device_weight(device(), weight, offset);
    DeviceArray<float> device_master(device(), master, offset);
    DeviceArray<float> device_moment1(device(), moment1, offset);
    DeviceArray<float> device_moment2(device(), moment2, offset);
    DeviceArray<float> device_grad(device(), moment1, offset);
    const auto stream = device().NewStream();
    for (int64_t step = 1; step <= 3; ++step) {
      auto grad = RandomValues<float>(count, seed + 10 + step);
      for (int64_t i = 0; i < count; ++i) {
        grad[i] *= std::pow(10.0f, static_cast<float>(i % 16 - 12));
      }
      if (count > 9) grad[9] = NAN;
      kernels::AdamW(CpuStream(),
                     Args(weight.data(), master.data(), moment1.data(),
                          moment2.data(), grad.data(), count, step));
      device_grad.Set(grad);
      kernels::AdamW(*stream, Args(device_weight.data(), device_master.data(),
                                   device_moment1.data(), device_moment2.data(),
                                   device_grad.data(), count, step));
      ExpectSameBits(device_weight.Get(*stream), weight);
      ExpectSameBits(device_master.Get(*stream), master);
      ExpectSameBits(device_moment1.Get(*stream), moment1);
      ExpectSameBits(device_moment2.Get(*stream), moment2);
    }
  }
};

TEST_F(KernelsOnDevice_AdamW, SmallCountsAndAddresses) {
  for (int64_t count : {0, 1, 5, 1024, 2050}) {
    for (size_t offset : {0, 1, 4}) {
      ExpectSteps<float>(count, offset);
      ExpectSteps<Bf16>(count, offset);
    }
  }
}

TEST_F(KernelsOnDevice_AdamW, ManyElements) {
  ExpectSteps<float>(Many(1'000'003), 0);
  ExpectSteps<Bf16>(Many(1'000'003), 0);
}

TEST_F(KernelsOnDevice_AdamW, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  constexpr int64_t kCount = int64_t{1} << 26;
  Zeros zeros(device());
  const auto args = Args(zeros.Of<Bf16>(kCount), zeros.Of<float>(kCount),
                         zeros.Of<float>(kCount), zeros.Of<float>(kCount),
                         zeros.Of<float>(kCount), kCount, 2);
  const auto stream = device().NewStream();
  // 16 bytes read (master, moments, gradient), 14 written.
  RecordBandwidth(device(), *stream, "adamw bf16", 30.0 * kCount,
                  [&] { kernels::AdamW(*stream, args); });
}

}  // namespace
}  // namespace holdfast::tests
