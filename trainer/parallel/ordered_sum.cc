// trainer/parallel/ordered_sum.cc: blocked loops that stay in the first-level
// cache. Constant trip counts let the compiler vectorise at -O2; additions keep
// their order, lanes are different elements.

#include "trainer/parallel/ordered_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/base/check.h"

namespace holdfast::trainer {
namespace {

constexpr size_t kLanes = 32;
constexpr size_t kBlock = 2048;  // Elements: 8 KiB of FP32.

struct Sum {
  static float Of(float a, float b) { return a + b; }
  static int64_t Of(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) +
                                static_cast<uint64_t>(b));
  }
};

struct Max {
  static float Of(float a, float b) {
    if (std::isnan(a) || std::isnan(b)) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    return a < b ? b : a;
  }
  static int64_t Of(int64_t a, int64_t b) { return a < b ? b : a; }
};

template <class Op, class T>
void Accumulate(T* __restrict sum, const T* __restrict addend, size_t count) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sum[i + lane] = Op::Of(sum[i + lane], addend[i + lane]);
    }
  }
  for (; i < count; ++i) sum[i] = Op::Of(sum[i], addend[i]);
}

template <class Op, class T>
void CombineRows(std::span<const T* const> rows, size_t count, T* out) {
  HF_CHECK(!rows.empty(), "no contributions to combine");
  T sum[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t length = std::min(kBlock, count - first);
    std::memcpy(sum, rows[0] + first, length * sizeof(T));
    for (size_t r = 1; r < rows.size(); ++r) {
      Accumulate<Op>(sum, rows[r] + first, length);
    }
    std::memcpy(out + first, sum, length * sizeof(T));
  }
}

template <class T>
void CombineAny(Combine op, std::span<const T* const> rows, size_t count,
                T* out) {
  if (op == Combine::kSum) {
    CombineRows<Sum, T>(rows, count, out);
  } else {
    CombineRows<Max, T>(rows, count, out);
  }
}

}  // namespace

void CombineInRankOrder(Combine op, std::span<const float* const> rows,
                        size_t count, float* out) {
  CombineAny(op, rows, count, out);
}

void CombineInRankOrder(Combine op, std::span<const int64_t* const> rows,
                        size_t count, int64_t* out) {
  CombineAny(op, rows, count, out);
}

void AddInto(std::span<float> sum, std::span<const float> addend) {
  HF_CHECK(sum.size() == addend.size(), "adding %d values to %d", addend.size(),
           sum.size());
  Accumulate<Sum>(sum.data(), addend.data(), sum.size());
}

}  // namespace holdfast::trainer
