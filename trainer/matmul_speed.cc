// trainer/matmul_speed.cc: times kernels::Matmul.

#include "trainer/matmul_speed.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "kernels/matmul.h"
#include "kernels/stream.h"

namespace holdfast::trainer {
namespace {

template <class T>
double Measure(int64_t rows, int64_t hidden, int64_t ffn) {
  const std::vector<T> a(static_cast<size_t>(rows * hidden));
  const std::vector<T> b(static_cast<size_t>(ffn * hidden));
  std::vector<T> c(static_cast<size_t>(rows * ffn));
  kernels::MatmulArgs<T, T> args;
  args.a = a.data();
  args.lda = hidden;
  args.b = b.data();
  args.ldb = hidden;
  args.transpose_b = true;
  args.c = c.data();
  args.ldc = ffn;
  args.m = rows;
  args.n = ffn;
  args.k = hidden;
  kernels::Matmul(kernels::CpuStream(), args);  // makes what is cached

  const ckpt::Clock& clock = ckpt::RealClock();
  const double flops = 2.0 * rows * hidden * ffn;
  // Long enough to time: at least a millisecond of products at 100 GFLOP/s.
  const int64_t repeats =
      std::max<int64_t>(1, static_cast<int64_t>(1e8 / flops));
  double best = 0;
  const absl::Duration end = clock.Monotonic() + absl::Milliseconds(200);
  do {
    const absl::Duration start = clock.Monotonic();
    for (int64_t i = 0; i < repeats; ++i) {
      kernels::Matmul(kernels::CpuStream(), args);
    }
    const double seconds =
        absl::ToDoubleSeconds(clock.Monotonic() - start) / repeats;
    best = std::max(best, flops / seconds);
  } while (clock.Monotonic() < end);
  return best;
}

}  // namespace

double MeasureMatmulFlops(ComputeType compute, int64_t rows, int64_t hidden,
                          int64_t ffn) {
  return compute == ComputeType::kBf16
             ? Measure<kernels::Bf16>(rows, hidden, ffn)
             : Measure<float>(rows, hidden, ffn);
}

}  // namespace holdfast::trainer
