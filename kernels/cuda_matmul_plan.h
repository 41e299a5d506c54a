// kernels/cuda_matmul_plan.h: a row-major product as a column-major library
// sees it.
//
// The library knows column-major matrices D (+)= op(X) op(Y). A row-major
// matrix read as column-major is its transpose, and C^T = op(B)^T op(A)^T. So
// D is C^T, n x m; X is what is stored for B, Y what is stored for A, and each
// is transposed exactly when the caller transposes it.
//
// Pure, plain C++: tests run it over a naive column-major product.

#ifndef HOLDFAST_KERNELS_CUDA_MATMUL_PLAN_H_
#define HOLDFAST_KERNELS_CUDA_MATMUL_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace holdfast::kernels {

// A stored column-major matrix: element (r, c) is at r + c * ld.
struct ColumnMajor {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t ld = 0;  // at least rows

  friend bool operator==(const ColumnMajor&, const ColumnMajor&) = default;
};

enum class MatmulTypes : uint8_t { kFloat, kBf16ToFloat, kBf16 };

// All that the library's choice of algorithm depends on.
struct CudaMatmulPlan {
  MatmulTypes types = MatmulTypes::kFloat;
  bool transpose_x = false;
  bool transpose_y = false;
  bool accumulate = false;
  ColumnMajor x, y, d;
  // Of the pointers, in bytes: a power of two, at most 256.
  int32_t align_x = 0, align_y = 0, align_d = 0;

  friend bool operator==(const CudaMatmulPlan&,
                         const CudaMatmulPlan&) = default;
};

// The largest power of two up to 256 that divides the address.
inline int32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256u;
  return static_cast<int32_t>(address & (~address + 1));
}

// For m, n and k above 0.
template <typename T, typename Out>
CudaMatmulPlan PlanCudaMatmul(const MatmulArgs<T, Out>& args) {
  CudaMatmulPlan plan;
  if constexpr (std::is_same_v<Out, Bf16>) {
    plan.types = MatmulTypes::kBf16;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    plan.types = MatmulTypes::kBf16ToFloat;
  }
  plan.transpose_x = args.transpose_b;
  plan.transpose_y = args.transpose_a;
  plan.accumulate = args.accumulate;
  plan.x = {args.n, args.k, args.ldb};
  if (args.transpose_b) plan.x = {args.k, args.n, args.ldb};
  plan.y = {args.k, args.m, args.lda};
  if (args.transpose_a) plan.y = {args.m, args.k, args.lda};
  plan.d = {args.n, args.m, args.ldc};
  plan.align_x = AlignmentOf(args.b);
  plan.align_y = AlignmentOf(args.a);
  plan.align_d = AlignmentOf(args.c);
  return plan;
}

struct CudaMatmulPlanHash {
  size_t operator()(const CudaMatmulPlan& p) const {
    uint64_t hash = static_cast<uint64_t>(p.types) | (p.transpose_x ? 4 : 0) |
                    (p.transpose_y ? 8 : 0) | (p.accumulate ? 16 : 0);
    for (const int64_t value :
         {p.x.rows, p.x.columns, p.x.ld, p.y.ld, p.d.columns, p.d.ld,
          int64_t{p.align_x}, int64_t{p.align_y}, int64_t{p.align_d}}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_MATMUL_PLAN_H_
