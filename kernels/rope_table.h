// kernels/rope_table.h: the table of RopeFillTable, in host memory. Internal to
// kernels/: the GPU's table is made here too and copied, since its own powf and
// cosf differ from libm's in the last bits, which far positions magnify.

#ifndef HOLDFAST_KERNELS_ROPE_TABLE_H_
#define HOLDFAST_KERNELS_ROPE_TABLE_H_

#include <cmath>
#include <cstdint>

namespace holdfast::kernels {

inline void FillRopeTable(float* table, int64_t start, int64_t positions,
                          int64_t head_dim, float theta) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float exponent =
        static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0f / std::pow(theta, exponent);
    for (int64_t p = 0; p < positions; ++p) {
      const float angle = static_cast<float>(start + p) * frequency;
      table[p * head_dim + i] = std::cos(angle);
      table[p * head_dim + half + i] = std::sin(angle);
    }
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ROPE_TABLE_H_
