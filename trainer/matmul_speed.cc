// trainer/matmul_speed.cc: times kernels::Matmul.

#include "trainer/matmul_speed.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "kernels/matmul.h"
#include "kernels/stream.h"

namespace holdfast::trainer {
namespace {

// Its memory is the device's and given back.
template <class T>
absl::StatusOr<double> Measure(kernels::Device& device, int64_t rows,
                               int64_t hidden, int64_t ffn) {
  const auto allocate = [&](int64_t count) {
    return kernels::AllocateOwned(device, kernels::MemorySpace::kDevice,
                                  static_cast<size_t>(count) * sizeof(T));
  };
  HF_ASSIGN_OR_RETURN(const kernels::OwnedBuffer a, allocate(rows * hidden));
  HF_ASSIGN_OR_RETURN(const kernels::OwnedBuffer b, allocate(ffn * hidden));
  HF_ASSIGN_OR_RETURN(const kernels::OwnedBuffer c, allocate(rows * ffn));
  const std::unique_ptr<kernels::Stream> stream = device.NewStream();
  kernels::MatmulArgs<T, T> args;
  args.a = a.as<T>();
  args.lda = hidden;
  args.b = b.as<T>();
  args.ldb = hidden;
  args.transpose_b = true;
  args.c = c.as<T>();
  args.ldc = ffn;
  args.m = rows;
  args.n = ffn;
  args.k = hidden;
  kernels::Matmul(*stream, args);  // makes what is cached
  device.Sync(*stream);

  const ckpt::Clock& clock = ckpt::RealClock();
  const double flops = 2.0 * rows * hidden * ffn;
  // Long enough to time: at least a millisecond, at 100 GFLOP/s of a processor
  // or 1 PFLOP/s of a GPU.
  const double flops_timed = stream->immediate() ? 1e8 : 1e12;
  const int64_t repeats =
      std::max<int64_t>(1, static_cast<int64_t>(flops_timed / flops));
  double best = 0;
  const absl::Duration end = clock.Monotonic() + absl::Milliseconds(200);
  do {
    const absl::Duration start = clock.Monotonic();
    for (int64_t i = 0; i < repeats; ++i) kernels::Matmul(*stream, args);
    device.Sync(*stream);
    const double seconds =
        absl::ToDoubleSeconds(clock.Monotonic() - start) / repeats;
    best = std::max(best, flops / seconds);
  } while (clock.Monotonic() < end);
  HF_RETURN_IF_ERROR(device.status());
  return best;
}

}  // namespace

absl::StatusOr<double> MeasureMatmulFlops(kernels::Device& device,
                                          ComputeType compute, int64_t rows,
                                          int64_t hidden, int64_t ffn) {
  return compute == ComputeType::kBf16
             ? Measure<kernels::Bf16>(device, rows, hidden, ffn)
             : Measure<float>(device, rows, hidden, ffn);
}

}  // namespace holdfast::trainer
