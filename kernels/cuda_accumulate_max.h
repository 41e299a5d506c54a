// kernels/cuda_accumulate_max.h: AccumulateMax for a block of GPU threads.
//
// Bound by memory; the vectors it is for are short (a row's maxima).

#ifndef HOLDFAST_KERNELS_CUDA_ACCUMULATE_MAX_H_
#define HOLDFAST_KERNELS_CUDA_ACCUMULATE_MAX_H_

#include <cstdint>

#include "kernels/cuda_block.h"
#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

struct AccumulateMaxKernel {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;

  const float* x;
  float* y;
  int64_t count;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t stride = block.count() * kThreads;
    for (int64_t first = block.index() * kThreads; first < count;
         first += stride) {
      block.ForEachOnly([&](int thread) {
        const int64_t i = first + thread;
        if (i >= count) return;
        const float mine = y[i];
        const float other = x[i];
        if (other > mine || other != other) y[i] = other;
      });
    }
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ACCUMULATE_MAX_H_
