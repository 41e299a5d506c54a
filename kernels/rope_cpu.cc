// kernels/rope_cpu.cc: rotary embedding on the CPU: rows in parallel.

#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/rope.h"
#include "kernels/rope_table.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kRowsPerItem = 32;

// direction is 1 for the forward, -1 for the backward.
template <typename T>
HOLDFAST_VECTOR_CLONES void TurnRows(const RopeArgs<T>& args, float direction,
                                     int64_t begin, int64_t end) {
  const int64_t half = args.head_dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const float* cosines = args.table + (row % args.positions) * args.head_dim;
    const float* sines = cosines + half;
    for (int64_t head = 0; head < args.heads; ++head) {
      T* low = args.x + row * args.stride + head * args.head_dim;
      T* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = ToFloat(low[i]);
        const float b = ToFloat(high[i]);
        const float sine = direction * sines[i];
        low[i] = FromFloat<T>(a * cosines[i] - b * sine);
        high[i] = FromFloat<T>(b * cosines[i] + a * sine);
      }
    }
  }
}

template <typename T>
void Turn(Stream& stream, const RopeArgs<T>& args, float direction) {
  KERNEL_CHECK(args.head_dim % 2 == 0, "head_dim %d is odd", args.head_dim);
  KERNEL_CHECK(args.stride >= args.heads * args.head_dim,
               "stride %d is below %d heads of %d", args.stride, args.heads,
               args.head_dim);
  if (auto* set = KernelSetOf<T>(stream))
    return set->Rope(stream, args, direction);
  stream.Launch([args, direction] {
    ParallelRanges(args.sequences * args.positions, kRowsPerItem,
                   [&](int64_t begin, int64_t end) {
                     TurnRows(args, direction, begin, end);
                   });
  });
}

}  // namespace

void RopeFillTable(Stream& stream, float* table, int64_t start,
                   int64_t positions, int64_t head_dim, float theta) {
  KERNEL_CHECK(head_dim % 2 == 0, "head_dim %d is odd", head_dim);
  if (auto* set = stream.kernel_set())
    return set->RopeFillTable(stream, table, start, positions, head_dim, theta);
  stream.Launch(
      [=] { FillRopeTable(table, start, positions, head_dim, theta); });
}

template <typename T>
void RopeForward(Stream& stream, const RopeArgs<T>& args) {
  Turn(stream, args, 1.0f);
}

template <typename T>
void RopeBackward(Stream& stream, const RopeArgs<T>& args) {
  Turn(stream, args, -1.0f);
}

template void RopeForward(Stream&, const RopeArgs<float>&);
template void RopeForward(Stream&, const RopeArgs<Bf16>&);
template void RopeBackward(Stream&, const RopeArgs<float>&);
template void RopeBackward(Stream&, const RopeArgs<Bf16>&);

}  // namespace holdfast::kernels
