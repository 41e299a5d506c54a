// tools/convert/cast.h: floating-point elements from one type to another. Pure.
//
// Widening is exact. Narrowing rounds to the nearest, ties to even, once: F64
// to BF16 or F16 goes through FP32 rounded to odd, so that the second rounding
// sees what the first one cut. NaN stays NaN. About 1 ns an element.

#ifndef HOLDFAST_TOOLS_CONVERT_CAST_H_
#define HOLDFAST_TOOLS_CONVERT_CAST_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/layout/tensor.h"

namespace holdfast::tools {

uint16_t F16FromF32(float value);
float F32FromF16(uint16_t bits);

// Whether CastElements takes this pair: from and to BF16, F16 and F32, from F64
// too; any type to itself.
bool CanCast(ckpt::DType from, ckpt::DType to);

// `in` and `out` hold the same number of elements, in memory of any alignment
// that does not overlap. Returns how many finite values became infinite.
int64_t CastElements(ckpt::DType from, std::span<const std::byte> in,
                     ckpt::DType to, std::span<std::byte> out);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_CAST_H_
