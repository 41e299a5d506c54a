// Products on the device against sums in double.
//
// Tolerance. Products of BF16 values are exact in FP32 and sums are FP32 in the
// library's order, on tensor cores with a rounding of their own: an element may
// be off by 2e-6 of the sum of its terms' sizes, 16 FP32 roundings, and by one
// rounding to the output's type.

#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "kernels/matmul.h"
#include "tests/device/device_array.h"
#include "tests/device/test_device.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::tests {
namespace {

using kernels::Bf16;
using kernels::MatmulArgs;
using kernels::RandomValues;
using kernels::SameBits;
using kernels::ToFloat;

struct Case {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  int64_t padding = 0;                    // of the leading dimensions
  size_t offset = 0;                      // of the pointers, in elements
  int64_t row_step = 1, column_step = 1;  // of what is compared
};

class KernelsOnDevice_Matmul : public OnDevice {
 protected:
  template <typename T, typename Out>
  void ExpectProduct(const Case& c) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " m " << c.m << " n " << c.n << " k "
                 << c.k << " ta " << c.transpose_a << " tb " << c.transpose_b
                 << " padding " << c.padding << " offset " << c.offset);
    MatmulArgs<T, Out> args;
    args.m = c.m;
    args.n = c.n;
    args.k = c.k;
    args.transpose_a = c.transpose_a;
    args.transpose_b = c.transpose_b;
    args.accumulate = c.accumulate;
    args.lda = (c.transpose_a ? c.m : c.k) + c.padding;
    args.ldb = (c.transpose_b ? c.k : c.n) + c.padding;
    args.ldc = c.n + c.padding;
    const auto a =
        RandomValues<T>((c.transpose_a ? c.k : c.m) * args.lda, seed);
    const auto b =
        RandomValues<T>((c.transpose_b ? c.n : c.k) * args.ldb, seed + 1);
    const auto before = RandomValues<Out>(c.m * args.ldc, seed + 2);
    DeviceArray<T> device_a(device(), a, c.offset);
    DeviceArray<T> device_b(device(), b, c.offset);
    DeviceArray<Out> device_c(device(), before, c.offset);
    args.a = device_a.data();
    args.b = device_b.data();
    args.c = device_c.data();
    const auto stream = device().NewStream();
    kernels::Matmul(*stream, args);
    const std::vector<Out> out = device_c.Get(*stream);
    ASSERT_TRUE(device().status().ok()) << device().status();
    for (int64_t i = 0; i < c.m; i += c.row_step) {
      for (int64_t j = 0; j < args.ldc; j += c.column_step) {
        const auto at = static_cast<size_t>(i * args.ldc + j);
        const double old = ToFloat(before[at]);
        if (j >= c.n) {
          ASSERT_EQ(ToFloat(out[at]), old) << "padding of row " << i;
          continue;
        }
        double sum = c.accumulate ? old : 0.0;
        double size = std::abs(sum);
        for (int64_t p = 0; p < c.k; ++p) {
          const double term =
              double{ToFloat(a[static_cast<size_t>(
                  c.transpose_a ? p * args.lda + i : i * args.lda + p)])} *
              ToFloat(b[static_cast<size_t>(c.transpose_b ? j * args.ldb + p
                                                          : p * args.ldb + j)]);
          sum += term;
          size += std::abs(term);
        }
        const double bound =
            2e-6 * size + 1.01 * kernels::kRounding<Out> * std::abs(sum);
        ASSERT_NEAR(ToFloat(out[at]), sum, bound + 1e-30) << i << ", " << j;
      }
    }
  }

  template <typename T, typename Out>
  void ExpectProducts() {
    // The model's own: y = x w^T, dx = dy w, dw += dy^T x.
    for (const bool small : {true, false}) {
      const int64_t rows = small ? 96 : 1024;
      const int64_t in = small ? 64 : 768;
      const int64_t out = small ? 160 : 2048;
      const int64_t step = small ? 1 : 41;
      ExpectProduct<T, Out>({.m = rows,
                             .n = out,
                             .k = in,
                             .transpose_b = true,
                             .row_step = step,
                             .column_step = step});
      ExpectProduct<T, Out>({.m = rows,
                             .n = in,
                             .k = out,
                             .row_step = step,
                             .column_step = step});
      ExpectProduct<T, Out>({.m = out,
                             .n = in,
                             .k = rows,
                             .transpose_a = true,
                             .accumulate = std::is_same_v<Out, float>,
                             .row_step = step,
                             .column_step = step});
      if (TestDeviceIsFake()) break;
    }
    std::mt19937_64 random(FreshSeed());
    const auto upto = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
    };
    for (int i = 0; i < 60; ++i) {
      ExpectProduct<T, Out>(
          {.m = upto(70),
           .n = upto(70),
           .k = upto(90),
           .transpose_a = upto(1) == 1,
           .transpose_b = upto(1) == 1,
           .accumulate = std::is_same_v<Out, float> && upto(1) == 1,
           .padding = upto(1) * upto(9),
           .offset = static_cast<size_t>(upto(1) * upto(5))});
    }
  }
};

TEST_F(KernelsOnDevice_Matmul, Bf16) { ExpectProducts<Bf16, Bf16>(); }
TEST_F(KernelsOnDevice_Matmul, Bf16ToFloat) { ExpectProducts<Bf16, float>(); }
TEST_F(KernelsOnDevice_Matmul, Float) { ExpectProducts<float, float>(); }

TEST_F(KernelsOnDevice_Matmul, SmallEmptySumsAndEmptyMatrices) {
  ExpectProduct<Bf16, Bf16>({.m = 5, .n = 7, .k = 0, .padding = 3});
  ExpectProduct<Bf16, float>(
      {.m = 5, .n = 7, .k = 0, .accumulate = true, .padding = 3});
  ExpectProduct<float, float>({.m = 0, .n = 7, .k = 3});
  ExpectProduct<float, float>({.m = 5, .n = 0, .k = 3});
  ExpectProduct<Bf16, float>({.m = 1, .n = 1, .k = 1, .padding = 1});
}

// A sum over many rows into a small matrix is where the library divides K; its
// bits stay, alone or beside other work.
TEST_F(KernelsOnDevice_Matmul, SameBitsEachTime) {
  const int64_t rows = TestDeviceIsFake() ? 256 : 16384;
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE(seed);
  DeviceArray<Bf16> x(device(), RandomValues<Bf16>(rows * 768, seed));
  DeviceArray<Bf16> dy(device(), RandomValues<Bf16>(rows * 768, seed + 1));
  DeviceArray<float> dw(device(), size_t{768} * 768);
  DeviceArray<float> other(device(), size_t{768} * 768);
  MatmulArgs<Bf16, float> args;
  args.a = dy.data();
  args.lda = 768;
  args.transpose_a = true;
  args.b = x.data();
  args.ldb = 768;
  args.c = dw.data();
  args.ldc = 768;
  args.m = args.n = 768;
  args.k = rows;
  const auto stream = device().NewStream();
  const auto side = device().NewStream();
  kernels::Matmul(*stream, args);
  const std::vector<float> first = dw.Get(*stream);
  for (int i = 0; i < 20; ++i) {
    if (i % 2 == 0) {
      MatmulArgs<Bf16, float> beside = args;
      beside.c = other.data();
      kernels::Matmul(*side, beside);
    }
    kernels::Matmul(*stream, args);
    ASSERT_TRUE(SameBits(first, dw.Get(*stream))) << "run " << i;
  }
  EXPECT_TRUE(SameBits(first, other.Get(*side)));
}

template <typename Out>
void Time(kernels::Device& device, const char* name, int64_t m, int64_t n,
          int64_t k, bool transpose_a, bool transpose_b) {
  DeviceArray<Bf16> a(device, RandomValues<Bf16>(m * k, 1));
  DeviceArray<Bf16> b(device, RandomValues<Bf16>(n * k, 2));
  DeviceArray<Out> c(device, static_cast<size_t>(m * n));
  MatmulArgs<Bf16, Out> args;
  args.a = a.data();
  args.lda = transpose_a ? m : k;
  args.transpose_a = transpose_a;
  args.b = b.data();
  args.ldb = transpose_b ? k : n;
  args.transpose_b = transpose_b;
  args.c = c.data();
  args.ldc = n;
  args.m = m;
  args.n = n;
  args.k = k;
  args.accumulate = std::is_same_v<Out, float>;
  const auto stream = device.NewStream();
  const double seconds = SecondsOnDevice(
      device, *stream, 20, [&] { kernels::Matmul(*stream, args); });
  ASSERT_TRUE(device.status().ok()) << device.status();
  RecordFigure(name, "TFLOP/s",
               2e-12 * static_cast<double>(m * n * k) / seconds);
}

TEST_F(KernelsOnDevice_Matmul, SpeedOfTheModelsProducts) {
  if (TestDeviceIsFake()) GTEST_SKIP() << "a fake device has no speed";
  Time<Bf16>(device(), "matmul y = x w^T, 8192 x 5632 x 2048", 8192, 5632, 2048,
             false, true);
  Time<Bf16>(device(), "matmul dx = dy w, 8192 x 2048 x 5632", 8192, 2048, 5632,
             false, false);
  Time<float>(device(), "matmul dw += dy^T x, 5632 x 2048 x 8192", 5632, 2048,
              8192, true, false);
}

}  // namespace
}  // namespace holdfast::tests
