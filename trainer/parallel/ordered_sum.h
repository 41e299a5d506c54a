// trainer/parallel/ordered_sum.h: adding the contributions of ranks in rank
// order. Pure; any thread; memory-bound.

#ifndef HOLDFAST_TRAINER_PARALLEL_ORDERED_SUM_H_
#define HOLDFAST_TRAINER_PARALLEL_ORDERED_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::trainer {

// How two contributions become one, element by element.
enum class Combine { kSum, kMax };

// rows[r] is the contribution of rank r. out[i] = (rows[0][i] op rows[1][i]) op
// rows[2][i] ..., in FP32 or in int64 that wraps. `out` may be one of the rows,
// and overlaps no other. A maximum with a NaN among its values is a NaN.
void CombineInRankOrder(Combine op, std::span<const float* const> rows,
                        size_t count, float* out);
void CombineInRankOrder(Combine op, std::span<const int64_t* const> rows,
                        size_t count, int64_t* out);

// sum[i] += addend[i].
void AddInto(std::span<float> sum, std::span<const float> addend);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_ORDERED_SUM_H_
