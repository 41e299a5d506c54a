// ckpt/layout/tensor.cc: sizes and names of element types.

#include "ckpt/layout/tensor.h"

#include "ckpt/base/check.h"

namespace holdfast::ckpt {

int SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return 1;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  HF_CHECK(false, "dtype %d", static_cast<int>(dtype));
}

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  HF_CHECK(false, "dtype %d", static_cast<int>(dtype));
}

}  // namespace holdfast::ckpt
