// The flat loops on the device: the processor's bits.

#include <limits>

#include "kernels/elementwise.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

class KernelsOnDevice_Elementwise : public OnDevice {
 protected:
  template <typename T>
  void ExpectFlat(int64_t count, size_t offset) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " count " << count
                                    << " offset " << offset);
    const auto x = RandomValues<T>(count, seed);
    const auto y = RandomValues<T>(count, seed + 1);
    const auto sum = RandomValues<float>(count, seed + 2);
    auto added = y;
    auto scaled = x;
    auto accumulated = sum;
    kernels::Add(CpuStream(), x.data(), y.data(), added.data(), count);
    kernels::Scale(CpuStream(), scaled.data(), 0.37f, count);
    kernels::Accumulate(CpuStream(), x.data(), accumulated.data(), count);

    const auto stream = device().NewStream();
    DeviceArray<T> device_x(device(), x, offset);
    DeviceArray<T> device_y(device(), y, offset);
    DeviceArray<float> device_sum(device(), sum, offset / 2);
    DeviceArray<T> zeroed(device(), x, offset);
    kernels::Accumulate(*stream, device_x.data(), device_sum.data(), count);
    kernels::Add(*stream, device_x.data(), device_y.data(), device_y.data(),
                 count);
    kernels::Scale(*stream, device_x.data(), 0.37f, count);
    kernels::Zero(*stream, zeroed.data(), count);
    ExpectSameBits(device_y.Get(*stream), added);
    ExpectSameBits(device_x.Get(*stream), scaled);
    ExpectSameBits(device_sum.Get(*stream), accumulated);
    ExpectSameBits(zeroed.Get(*stream), std::vector<T>(x.size()));
  }

  template <typename From, typename To>
  void ExpectCast(int64_t count, size_t offset) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " count " << count);
    auto x = RandomValues<From>(count, seed);
    if (count > 4) {
      x[0] = kernels::FromFloat<From>(NAN);
      x[1] = kernels::FromFloat<From>(-INFINITY);
      x[2] = kernels::FromFloat<From>(3.4e38f);  // Infinity as Bf16.
      x[3] = kernels::FromFloat<From>(1e-40f);   // Subnormal.
    }
    std::vector<To> expected(x.size());
    kernels::Cast(CpuStream(), x.data(), expected.data(), count);
    const auto stream = device().NewStream();
    DeviceArray<From> from(device(), x, offset);
    DeviceArray<To> to(device(), std::vector<To>(x.size()), offset);
    kernels::Cast(*stream, from.data(), to.data(), count);
    ExpectSameBits(to.Get(*stream), expected);
  }

  void ExpectSums(int64_t count, size_t offset) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " count " << count);
    const auto x = RandomValues<float>(count, seed, 1e3f);
    const auto blocks = static_cast<size_t>(kernels::BlockCount(count));
    std::vector<double> sums(blocks);
    std::vector<double> total(1);
    kernels::BlockSumsOfSquares(CpuStream(), x.data(), count, sums.data());
    kernels::SumOfSquares(CpuStream(), x.data(), count, total.data());
    const auto stream = device().NewStream();
    DeviceArray<float> device_x(device(), x, offset);
    DeviceArray<double> device_sums(device(), blocks);
    DeviceArray<double> device_total(device(), std::vector<double>{7.0});
    kernels::BlockSumsOfSquares(*stream, device_x.data(), count,
                                device_sums.data());
    kernels::SumOfSquares(*stream, device_x.data(), count, device_total.data());
    EXPECT_EQ(device_sums.Get(*stream), sums);
    EXPECT_EQ(device_total.Get(*stream), total);
  }
};

TEST_F(KernelsOnDevice_Elementwise, SmallCountsAndAddresses) {
  for (int64_t count : {0, 1, 7, 8, 1000, 2049}) {
    for (size_t offset : {0, 1, 8}) {
      ExpectFlat<float>(count, offset);
      ExpectFlat<Bf16>(count, offset);
      ExpectCast<float, Bf16>(count, offset);
      ExpectCast<Bf16, float>(count, offset);
      ExpectCast<float, float>(count, offset);
      ExpectSums(count, offset);
    }
  }
}

TEST_F(KernelsOnDevice_Elementwise, ManyElements) {
  ExpectFlat<float>(Many(3'000'001), 0);
  ExpectFlat<Bf16>(Many(3'000'001), 0);
  ExpectCast<float, Bf16>(Many(3'000'001), 0);
  ExpectSums(Many(5'000'001), 0);
}

TEST_F(KernelsOnDevice_Elementwise, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  constexpr int64_t kCount = int64_t{1} << 27;
  Zeros zeros(device());
  Bf16* const x = zeros.Of<Bf16>(kCount);
  Bf16* const y = zeros.Of<Bf16>(kCount);
  float* const z = zeros.Of<float>(kCount);
  double* const sums = zeros.Of<double>(kernels::BlockCount(kCount));
  const auto stream = device().NewStream();
  const auto record = [&](const char* name, double bytes, const auto& work) {
    RecordBandwidth(device(), *stream, name, bytes * kCount, work);
  };
  // What the others are compared with: the device's own copy.
  const kernels::Buffer from{kernels::MemorySpace::kDevice,
                             reinterpret_cast<std::byte*>(x), kCount * 2};
  const kernels::Buffer to{kernels::MemorySpace::kDevice,
                           reinterpret_cast<std::byte*>(y), kCount * 2};
  record("copy in device memory", 4, [&] { device().Copy(to, from, *stream); });
  record("add bf16", 6, [&] { kernels::Add(*stream, x, y, y, kCount); });
  record("scale bf16", 4, [&] { kernels::Scale(*stream, x, 1.0f, kCount); });
  record("accumulate bf16", 10,
         [&] { kernels::Accumulate(*stream, x, z, kCount); });
  record("cast f32 to bf16", 6, [&] { kernels::Cast(*stream, z, x, kCount); });
  record("zero bf16", 2, [&] { kernels::Zero(*stream, x, kCount); });
  record("block sums of squares", 4,
         [&] { kernels::BlockSumsOfSquares(*stream, z, kCount, sums); });
}

}  // namespace
}  // namespace holdfast::tests
