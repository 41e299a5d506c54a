// tests/unit/kernels/cuda/fake_cublaslt.cc: see the header.

#include "tests/unit/kernels/cuda/fake_cublaslt.h"

#include <cstring>
#include <map>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"

namespace holdfast::kernels {
namespace {

struct Operation {
  cublasComputeType_t compute;
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType type;
  int64_t rows, columns, ld;

  friend bool operator==(const Layout&, const Layout&) = default;
};
struct Preference {
  uint64_t workspace = 0;
  std::map<int, uint32_t> values;
};
// What an algorithm was chosen for, kept behind its number.
struct Choice {
  Operation operation;
  Layout a, b, d;
  Preference preference;
};
std::map<uint64_t, Choice> choices;

template <typename T, typename Handle>
T& As(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}
template <typename T, typename Handle>
void Make(Handle* handle, T value) {
  *handle = reinterpret_cast<Handle>(new T(std::move(value)));
  ++FakeLt().alive;
}
template <typename T, typename Handle>
cublasStatus_t Destroy(Handle handle) {
  delete reinterpret_cast<T*>(handle);
  --FakeLt().alive;
  return CUBLAS_STATUS_SUCCESS;
}

float Load(const void* data, const Layout& layout, bool transpose, int64_t row,
           int64_t column) {
  if (transpose) std::swap(row, column);
  EXPECT_LT(row, layout.rows);
  EXPECT_LT(column, layout.columns);
  const int64_t at = row + column * layout.ld;
  return layout.type == CUDA_R_16BF
             ? ToFloat(static_cast<const Bf16*>(data)[at])
             : static_cast<const float*>(data)[at];
}

void Product(const Choice& c, const void* a, const void* b, float beta,
             void* d) {
  const bool ta = c.operation.transpose_a == CUBLAS_OP_T;
  const bool tb = c.operation.transpose_b == CUBLAS_OP_T;
  const int64_t k = ta ? c.a.rows : c.a.columns;
  EXPECT_EQ(k, tb ? c.b.columns : c.b.rows);
  EXPECT_EQ(c.d.rows, ta ? c.a.columns : c.a.rows);
  EXPECT_EQ(c.d.columns, tb ? c.b.rows : c.b.columns);
  for (int64_t column = 0; column < c.d.columns; ++column) {
    for (int64_t row = 0; row < c.d.rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += double{Load(a, c.a, ta, row, i)} * Load(b, c.b, tb, i, column);
      }
      const int64_t at = row + column * c.d.ld;
      if (c.d.type == CUDA_R_16BF) {
        static_cast<Bf16*>(d)[at] = RoundToBf16(static_cast<float>(sum));
      } else {
        auto& to = static_cast<float*>(d)[at];
        to = static_cast<float>(sum) + (beta == 0 ? 0.0f : beta * to);
      }
    }
  }
}

}  // namespace

FakeCublasLt& FakeLt() {
  static FakeCublasLt fake;
  return fake;
}

extern "C" {

size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "other";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  Make(handle, 0);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return Destroy<int>(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  EXPECT_EQ(scale, CUDA_R_32F);
  Make(made, Operation{compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return Destroy<Operation>(desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void* value, size_t bytes) {
  if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  auto& operation = As<Operation>(desc);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) {
    std::memcpy(&operation.transpose_a, value, bytes);
  } else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) {
    std::memcpy(&operation.transpose_b, value, bytes);
  } else {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  Make(made, Layout{type, static_cast<int64_t>(rows),
                    static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* made) {
  Make(made, Preference{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  return Destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t made,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t bytes) {
  auto& preference = As<Preference>(made);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (bytes != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference.workspace, value, bytes);
  } else {
    if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference.values[attribute], value, bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t made, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* found) {
  EXPECT_EQ(wanted, 1);
  EXPECT_EQ(As<Layout>(c), As<Layout>(d));
  const auto& preference = As<Preference>(made);
  FakeLt().workspace = preference.workspace;
  FakeLt().reduction_mask =
      preference.values.at(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  FakeLt().compute = As<Operation>(operation).compute;
  if (FakeLt().fail_choice != CUBLAS_STATUS_SUCCESS) {
    return FakeLt().fail_choice;
  }
  const auto number = static_cast<uint64_t>(++FakeLt().choices);
  choices[number] = {As<Operation>(operation), As<Layout>(a), As<Layout>(b),
                     As<Layout>(d), preference};
  results[0].algo.data[0] = number;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = FakeLt().finds_nothing ? 0 : 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout,
                              void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (FakeLt().fail_launch != CUBLAS_STATUS_SUCCESS) {
    return FakeLt().fail_launch;
  }
  const Choice choice = choices.at(algorithm->data[0]);
  EXPECT_EQ(As<Operation>(operation).transpose_a, choice.operation.transpose_a);
  EXPECT_EQ(As<Operation>(operation).transpose_b, choice.operation.transpose_b);
  EXPECT_EQ(As<Layout>(a_layout), choice.a);
  EXPECT_EQ(As<Layout>(b_layout), choice.b);
  EXPECT_EQ(As<Layout>(c_layout), choice.d);
  EXPECT_EQ(As<Layout>(d_layout), choice.d);
  EXPECT_EQ(c, d);
  EXPECT_EQ(workspace_bytes, choice.preference.workspace);
  const auto aligned = [&](const void* pointer, int attribute) {
    const uint32_t bytes = choice.preference.values.at(attribute);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % bytes, 0u);
  };
  aligned(a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  aligned(b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
  aligned(c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
  aligned(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  EXPECT_EQ(*static_cast<const float*>(alpha), 1.0f);
  const float scale = *static_cast<const float*>(beta);
  ++FakeLt().launches;
  Fake().Enqueue(stream, [=] {
    std::memset(workspace, 0xcd, workspace_bytes);
    Product(choice, a, b, scale, d);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
}  // namespace holdfast::kernels
