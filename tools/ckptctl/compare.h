// tools/ckptctl/compare.h: two runs of equal type, element by element. Pure.

#ifndef HOLDFAST_TOOLS_CKPTCTL_COMPARE_H_
#define HOLDFAST_TOOLS_CKPTCTL_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/layout/tensor.h"

namespace holdfast::tools {

struct Difference {
  uint64_t elements = 0;   // compared
  uint64_t different = 0;  // whose bits differ: NaN equals itself, 0 is not -0
  uint64_t nan_count = 0;  // of the different ones, those with a NaN
  double abs_max = 0;      // over the different ones without a NaN
  double rel_max = 0;      // |a - b| / max(|a|, |b|)
};

// Adds what `a` and `b` differ in. Equal sizes, a multiple of the element's.
void Compare(ckpt::DType dtype, std::span<const std::byte> a,
             std::span<const std::byte> b, Difference* difference);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_COMPARE_H_
