// kernels/matmul_cuda.cu: products by cuBLASLt.
//
// BF16 inputs go to the tensor cores and are summed in FP32; float inputs are
// multiplied as floats (CUBLAS_COMPUTE_32F_PEDANTIC: no TF32, no emulation),
// which is for tests of the same model in FP32, not for speed. `accumulate` is
// the library's own beta = 1; the model's linear layers have no bias, and no
// other epilogue of the library (bias, GELU, ReLU) occurs in it.
//
// Same bits each time: the library promises equal results on equal GPUs with a
// workspace of the caller's, one for each stream. Of the ways to divide K over
// processors ("split-K") two are allowed: none, and partial sums kept in FP32
// in the workspace and added in a separate step. The other two round or add
// partial sums in the output itself.
//
// The library's choice for a shape is asked once for each stream and kept.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_matmul.h"
#include "kernels/cuda_matmul_plan.h"
#include "kernels/cuda_result.h"

namespace holdfast::kernels {
namespace {

// What destroying says is of no use to anyone: the objects are memory of the
// host, and the handle goes last, when the stream is through.
struct DescDeleter {
  void operator()(cublasLtMatmulDescOpaque_t* p) const {
    cublasLtMatmulDescDestroy(p);
  }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const {
    cublasLtMatrixLayoutDestroy(p);
  }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const {
    cublasLtMatmulPreferenceDestroy(p);
  }
  void operator()(cublasLtContext* p) const { cublasLtDestroy(p); }
};
template <typename Opaque>
using Owned = std::unique_ptr<Opaque, DescDeleter>;

using Operation = Owned<cublasLtMatmulDescOpaque_t>;
using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;
using Preference = Owned<cublasLtMatmulPreferenceOpaque_t>;

// The library's side of a plan.
struct Chosen {
  Operation operation;
  Layout x, y, d;
  cublasLtMatmulAlgo_t algorithm{};
};

struct MatmulState {
  Owned<cublasLtContext> handle;
  std::unordered_map<CudaMatmulPlan, Chosen, CudaMatmulPlanHash> chosen;
};

template <typename Setter, typename Object, typename Attribute, typename Value>
cublasStatus_t Set(Setter* setter, const Object& object, Attribute attribute,
                   const Value& value) {
  return setter(object.get(), attribute, &value, sizeof value);
}

// Every status of the library's is looked at: `failed` keeps the first.
cublasStatus_t Choose(cublasLtHandle_t handle, const CudaMatmulPlan& plan,
                      Chosen* chosen) {
  cublasStatus_t failed = CUBLAS_STATUS_SUCCESS;
  const auto keep = [&](cublasStatus_t status) {
    if (failed == CUBLAS_STATUS_SUCCESS) failed = status;
  };
  const bool floats = plan.types == MatmulTypes::kFloat;
  const cudaDataType_t in = floats ? CUDA_R_32F : CUDA_R_16BF;
  const cudaDataType_t out =
      plan.types == MatmulTypes::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
  cublasLtMatmulDesc_t operation = nullptr;
  keep(cublasLtMatmulDescCreate(
      &operation, floats ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
      CUDA_R_32F));
  chosen->operation.reset(operation);
  const cublasOperation_t x = plan.transpose_x ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t y = plan.transpose_y ? CUBLAS_OP_T : CUBLAS_OP_N;
  keep(Set(cublasLtMatmulDescSetAttribute, chosen->operation,
           CUBLASLT_MATMUL_DESC_TRANSA, x));
  keep(Set(cublasLtMatmulDescSetAttribute, chosen->operation,
           CUBLASLT_MATMUL_DESC_TRANSB, y));
  const auto make_layout = [&](cudaDataType_t type, const ColumnMajor& matrix) {
    cublasLtMatrixLayout_t made = nullptr;
    keep(cublasLtMatrixLayoutCreate(
        &made, type, static_cast<uint64_t>(matrix.rows),
        static_cast<uint64_t>(matrix.columns), matrix.ld));
    return Layout(made);
  };
  chosen->x = make_layout(in, plan.x);
  chosen->y = make_layout(in, plan.y);
  chosen->d = make_layout(out, plan.d);

  cublasLtMatmulPreference_t made = nullptr;
  keep(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                          auto value) {
    keep(Set(cublasLtMatmulPreferenceSetAttribute, preference, attribute,
             value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(kCudaMatmulWorkspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                               CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         static_cast<uint32_t>(plan.align_x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         static_cast<uint32_t>(plan.align_y));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         static_cast<uint32_t>(plan.align_d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         static_cast<uint32_t>(plan.align_d));
  if (failed != CUBLAS_STATUS_SUCCESS) return failed;

  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  keep(cublasLtMatmulAlgoGetHeuristic(
      handle, chosen->operation.get(), chosen->x.get(), chosen->y.get(),
      chosen->d.get(), chosen->d.get(), preference.get(), 1, &result, &found));
  if (failed == CUBLAS_STATUS_SUCCESS && found == 0) {
    failed = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  keep(result.state);
  chosen->algorithm = result.algo;
  return failed;
}

MatmulState* StateOf(CudaStream& stream) {
  std::shared_ptr<void>& slot = stream.library_state();
  if (slot == nullptr) {
    auto state = std::make_shared<MatmulState>();
    cublasLtHandle_t handle = nullptr;
    const cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
      stream.device().Fail(absl::StrFormat("opening cuBLASLt: %s",
                                           cublasLtGetStatusString(status)));
      return nullptr;
    }
    state->handle.reset(handle);
    slot = std::move(state);
  }
  return static_cast<MatmulState*>(slot.get());
}

template <typename T, typename Out>
void FailProduct(CudaStream& stream, const MatmulArgs<T, Out>& args,
                 const char* doing, cublasStatus_t status) {
  stream.device().Fail(absl::StrFormat(
      "%s the product [%d, %d] x [%d, %d] (%s%s, ld %d, %d, %d): %s", doing,
      args.m, args.k, args.k, args.n, args.transpose_a ? "T" : "N",
      args.transpose_b ? "T" : "N", args.lda, args.ldb, args.ldc,
      cublasLtGetStatusString(status)));
}

}  // namespace

template <typename T, typename Out>
void MatmulCuda(CudaStream& stream, const MatmulArgs<T, Out>& args) {
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) {
    if (args.accumulate) return;
    LeaveToCheckLaunch(
        cudaMemset2DAsync(args.c, static_cast<size_t>(args.ldc) * sizeof(Out),
                          0, static_cast<size_t>(args.n) * sizeof(Out),
                          static_cast<size_t>(args.m), stream.handle()));
    return;
  }
  MatmulState* const state = StateOf(stream);
  auto* const workspace = stream.Scratch<char>(kCudaMatmulWorkspaceBytes);
  if (state == nullptr || workspace == nullptr) return;
  const CudaMatmulPlan plan = PlanCudaMatmul(args);
  auto found = state->chosen.find(plan);
  if (found == state->chosen.end()) {
    Chosen chosen;
    const cublasStatus_t status = Choose(state->handle.get(), plan, &chosen);
    if (status != CUBLAS_STATUS_SUCCESS) {
      return FailProduct(stream, args, "choosing an algorithm for", status);
    }
    found = state->chosen.emplace(plan, std::move(chosen)).first;
  }
  const Chosen& chosen = found->second;
  const float one = 1.0f;
  const float beta = args.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(state->handle.get(), chosen.operation.get(), &one, args.b,
                     chosen.x.get(), args.a, chosen.y.get(), &beta, args.c,
                     chosen.d.get(), args.c, chosen.d.get(), &chosen.algorithm,
                     workspace, kCudaMatmulWorkspaceBytes, stream.handle());
  if (status != CUBLAS_STATUS_SUCCESS) {
    FailProduct(stream, args, "launching", status);
  }
}

std::string CudaMatmulDescription() {
  const size_t version = cublasLtGetVersion();
  return absl::StrFormat(
      "cublasLt %d.%d.%d, fp32 sums, split-K in fp32 or none, workspace %d MiB",
      version / 10000, version % 10000 / 100, version % 100,
      kCudaMatmulWorkspaceBytes >> 20);
}

template void MatmulCuda(CudaStream&, const MatmulArgs<float, float>&);
template void MatmulCuda(CudaStream&, const MatmulArgs<Bf16, float>&);
template void MatmulCuda(CudaStream&, const MatmulArgs<Bf16, Bf16>&);

}  // namespace holdfast::kernels
