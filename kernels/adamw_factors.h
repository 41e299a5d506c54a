// kernels/adamw_factors.h: what one AdamW call computes once, for all elements.
// Internal to kernels/: the CPU and the GPU share it, in FP64 and the host's
// libm.

#ifndef HOLDFAST_KERNELS_ADAMW_FACTORS_H_
#define HOLDFAST_KERNELS_ADAMW_FACTORS_H_

#include <cmath>

#include "kernels/adamw.h"

namespace holdfast::kernels {

struct AdamWFactors {
  float one_minus_beta1;
  float one_minus_beta2;
  float decay;       // lr * weight_decay
  float step_size;   // lr / (1 - beta1^t)
  float correction;  // 1 / sqrt(1 - beta2^t)
};

template <typename T>
AdamWFactors FactorsOf(const AdamWArgs<T>& args) {
  const double t = static_cast<double>(args.step);
  const double beta1 = args.beta1;
  const double beta2 = args.beta2;
  const double lr = args.lr;
  return {
      .one_minus_beta1 = static_cast<float>(1.0 - beta1),
      .one_minus_beta2 = static_cast<float>(1.0 - beta2),
      .decay = static_cast<float>(lr * args.weight_decay),
      .step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, t))),
      .correction =
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t))),
  };
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ADAMW_FACTORS_H_
