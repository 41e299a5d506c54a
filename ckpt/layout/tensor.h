// ckpt/layout/tensor.h: what a model tells the layout about its tensors.

#ifndef HOLDFAST_CKPT_LAYOUT_TENSOR_H_
#define HOLDFAST_CKPT_LAYOUT_TENSOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::ckpt {

enum class DType : uint8_t {
  kBf16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF64 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
};

int SizeOf(DType dtype);               // bytes
std::string_view NameOf(DType dtype);  // "bf16", "f32", ...

// Where in the pipeline a tensor lives.
inline constexpr int kOnFirstStage = -1;  // embedding
inline constexpr int kOnLastStage = -2;   // final norm, head

// One logical tensor: a name, an unpadded logical shape, and the rule by which
// it is cut. Layer numbers are global.
struct TensorSpec {
  std::string name;            // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // logical, unpadded
  // The dimension that tensor parallelism cuts into equal parts, or -1: every
  // TP rank holds all of it, the lowest one stores it.
  int tp_dimension = -1;
  // The dimension's length is rounded up to a multiple of this before it is cut
  // (vocabulary padding; 1: none). Pads sit at the end, belong to nobody, and
  // never reach the disk.
  int64_t tp_pad_multiple = 1;
  int layer = kOnFirstStage;  // >= 0, or one of the two constants above
  // Also used on the last stage (a tied head): held there too when that is
  // another stage, stored by the first.
  bool tied_to_last_stage = false;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_LAYOUT_TENSOR_H_
