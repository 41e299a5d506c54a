// ckpt/base/types.h: small values that must not be swapped for one another.

#ifndef HOLDFAST_CKPT_BASE_TYPES_H_
#define HOLDFAST_CKPT_BASE_TYPES_H_

#include <array>
#include <cstdint>
#include <limits>
#include <string>

namespace holdfast::ckpt {

// A process of the job, 0 to world - 1.
enum class Rank : int32_t {};
constexpr int Index(Rank rank) { return static_cast<int>(rank); }

// keep_last of a run whose checkpoints are removed by its user alone.
inline constexpr int kKeepAll = std::numeric_limits<int>::max();

// The run's identity, drawn once when the run directory is made.
using RunId = std::array<uint8_t, 16>;

// 32 lower-case hexadecimal digits.
std::string ToHex(const RunId& id);

// Names one checkpoint of a run for ever. `attempt` counts the saves of one
// incarnation from 1, so no identity is ever used twice.
struct CheckpointId {
  int64_t step = 0;
  uint32_t incarnation = 0;
  uint32_t attempt = 0;

  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};

// "step-000000120.i0003.a01"
std::string ToString(const CheckpointId& id);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_TYPES_H_
