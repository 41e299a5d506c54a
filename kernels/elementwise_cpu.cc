// kernels/elementwise_cpu.cc: the flat loops on the CPU. Bound by memory.

#include <cstring>

#include "kernels/check.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

// Elements per item: long enough to hide handing it out, a whole number of
// blocks.
constexpr int64_t kGrain = 16 * kBlockElements;

inline float MaxOrNan(float a, float b) { return b > a || b != b ? b : a; }

template <typename T>
HOLDFAST_VECTOR_CLONES void AddRange(const T* x, const T* y, T* out,
                                     int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    out[i] = FromFloat<T>(ToFloat(x[i]) + ToFloat(y[i]));
  }
}

template <typename From, typename To>
HOLDFAST_VECTOR_CLONES void CastRange(const From* from, To* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = FromFloat<To>(ToFloat(from[i]));
}

template <typename T>
HOLDFAST_VECTOR_CLONES void ScaleRange(T* x, float factor, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    x[i] = FromFloat<T>(ToFloat(x[i]) * factor);
  }
}

template <typename T>
HOLDFAST_VECTOR_CLONES void AccumulateRange(const T* x, float* y,
                                            int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] += ToFloat(x[i]);
}

HOLDFAST_VECTOR_CLONES void AccumulateMaxRange(const float* x, float* y,
                                               int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = MaxOrNan(y[i], x[i]);
}

typedef double Sums __attribute__((vector_size(64)));

HOLDFAST_VECTOR_CLONES double BlockSumOfSquares(const float* x, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  Sums wide = {};
  typedef float Eight __attribute__((vector_size(32)));
  for (; i + kSums <= count; i += kSums) {
    Eight eight;
    std::memcpy(&eight, x + i, sizeof(eight));
    const Sums values = __builtin_convertvector(eight, Sums);
    wide += values * values;
  }
  std::memcpy(sums, &wide, sizeof(sums));
  for (; i < count; ++i) {
    const double value = x[i];
    sums[i % kSums] += value * value;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
         ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void BlockSums(const float* x, int64_t count, double* block_sums) {
  ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlockElements) {
      block_sums[at / kBlockElements] =
          BlockSumOfSquares(x + at, std::min(end - at, kBlockElements));
    }
  });
}

}  // namespace

template <typename T>
void Add(Stream& stream, const T* x, const T* y, T* out, int64_t count) {
  if (auto* set = KernelSetOf<T>(stream))
    return set->Add(stream, x, y, out, count);
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      AddRange(x + begin, y + begin, out + begin, end - begin);
    });
  });
}

template <typename From, typename To>
void Cast(Stream& stream, const From* from, To* to, int64_t count) {
  if (auto* set = KernelSetOf<From>(stream))
    return set->CastTo(stream, from, to, count);
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      CastRange(from + begin, to + begin, end - begin);
    });
  });
}

template <typename T>
void Scale(Stream& stream, T* x, float factor, int64_t count) {
  if (auto* set = KernelSetOf<T>(stream))
    return set->Scale(stream, x, factor, count);
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      ScaleRange(x + begin, factor, end - begin);
    });
  });
}

template <typename T>
void Zero(Stream& stream, T* x, int64_t count) {
  if (auto* set = stream.kernel_set())
    return set->ZeroBytes(stream, x, count * static_cast<int64_t>(sizeof(T)));
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      std::memset(static_cast<void*>(x + begin), 0,
                  static_cast<size_t>(end - begin) * sizeof(T));
    });
  });
}

template <typename T>
void Accumulate(Stream& stream, const T* x, float* y, int64_t count) {
  if (auto* set = KernelSetOf<T>(stream))
    return set->Accumulate(stream, x, y, count);
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      AccumulateRange(x + begin, y + begin, end - begin);
    });
  });
}

void AccumulateMax(Stream& stream, const float* x, float* y, int64_t count) {
  if (auto* set = stream.kernel_set())
    return set->AccumulateMax(stream, x, y, count);
  stream.Launch([=] {
    ParallelRanges(count, kGrain, [=](int64_t begin, int64_t end) {
      AccumulateMaxRange(x + begin, y + begin, end - begin);
    });
  });
}

void BlockSumsOfSquares(Stream& stream, const float* x, int64_t count,
                        double* block_sums) {
  if (auto* set = stream.kernel_set())
    return set->BlockSumsOfSquares(stream, x, count, block_sums);
  stream.Launch([=] { BlockSums(x, count, block_sums); });
}

void SumOfSquares(Stream& stream, const float* x, int64_t count,
                  double* total) {
  if (auto* set = stream.kernel_set())
    return set->SumOfSquares(stream, x, count, total);
  stream.Launch([=] {
    // A window of blocks at a time, so that the sums need no memory of their
    // own that grows with the array.
    constexpr int64_t kWindow = 1024;
    double sums[kWindow];
    double sum = 0.0;
    for (int64_t at = 0; at < count; at += kWindow * kBlockElements) {
      const int64_t length = std::min(count - at, kWindow * kBlockElements);
      BlockSums(x + at, length, sums);
      for (int64_t b = 0; b < BlockCount(length); ++b) sum += sums[b];
    }
    *total = sum;
  });
}

template void Add(Stream&, const float*, const float*, float*, int64_t);
template void Add(Stream&, const Bf16*, const Bf16*, Bf16*, int64_t);
template void Cast(Stream&, const float*, float*, int64_t);
template void Cast(Stream&, const float*, Bf16*, int64_t);
template void Cast(Stream&, const Bf16*, float*, int64_t);
template void Cast(Stream&, const Bf16*, Bf16*, int64_t);
template void Scale(Stream&, float*, float, int64_t);
template void Scale(Stream&, Bf16*, float, int64_t);
template void Zero(Stream&, float*, int64_t);
template void Zero(Stream&, Bf16*, int64_t);
template void Zero(Stream&, double*, int64_t);
template void Zero(Stream&, int32_t*, int64_t);
template void Accumulate(Stream&, const float*, float*, int64_t);
template void Accumulate(Stream&, const Bf16*, float*, int64_t);

}  // namespace holdfast::kernels
