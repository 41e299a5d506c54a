// kernels/adamw_cpu.cc: AdamW on the CPU: plain loops over ranges.

#include <cmath>

#include "kernels/adamw.h"
#include "kernels/adamw_factors.h"
#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kGrain = 16 * 1024;

template <typename T>
HOLDFAST_VECTOR_CLONES void UpdateRange(const AdamWArgs<T>& args,
                                        const AdamWFactors& factors,
                                        int64_t begin, int64_t end) {
  const AdamWFactors f = factors;
  const float grad_scale = args.grad_scale;
  const float eps = args.eps;
  T* weight = args.weight;
  float* master = args.master;
  float* moment1 = args.moment1;
  float* moment2 = args.moment2;
  const float* grad = args.grad;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = grad[i] * grad_scale;
    const float m = moment1[i] + f.one_minus_beta1 * (g - moment1[i]);
    const float v = moment2[i] + f.one_minus_beta2 * (g * g - moment2[i]);
    const float w = master[i] - f.decay * master[i];
    const float updated =
        w - f.step_size * m / (std::sqrt(v) * f.correction + eps);
    moment1[i] = m;
    moment2[i] = v;
    master[i] = updated;
    weight[i] = FromFloat<T>(updated);
  }
}

}  // namespace

template <typename T>
void AdamW(Stream& stream, const AdamWArgs<T>& args) {
  KERNEL_CHECK(args.step >= 1, "step %d; it counts from 1", args.step);
  if (auto* set = KernelSetOf<T>(stream)) return set->AdamW(stream, args);
  stream.Launch([args, factors = FactorsOf(args)] {
    ParallelRanges(args.count, kGrain, [&](int64_t begin, int64_t end) {
      UpdateRange(args, factors, begin, end);
    });
  });
}

template void AdamW(Stream&, const AdamWArgs<float>&);
template void AdamW(Stream&, const AdamWArgs<Bf16>&);

}  // namespace holdfast::kernels
