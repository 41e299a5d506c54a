// kernels/cuda_kernel_set.cu: forwards to kernels/cuda_launch.h.

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_driver.h"
#include "kernels/cuda_kernel_set.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_matmul.h"

// A method of one compute type hides the one of the other until that overrides
// it too: callers go through the bases, where nothing is hidden.
#ifdef __CUDACC__
#pragma nv_diag_suppress 997
#endif

namespace holdfast::kernels {
namespace {

template <typename Launch>
void Run(Stream& stream, const char* operation, const Launch& launch) {
  // Only a CudaStream has this set.
  auto& mine = static_cast<CudaStream&>(stream);
  mine.set_last_operation(operation);
  mine.device().MakeCurrent();
  launch(mine);
  mine.device().CheckLaunch(operation);
}

// The methods of one compute type, on top of those of the others.
template <typename T, typename Base>
class Typed : public Base {
 public:
  void Matmul(Stream& stream, const MatmulArgs<T, T>& args) override {
    Run(stream, "Matmul", [&](CudaStream& s) { MatmulCuda(s, args); });
  }
  void AttentionForward(Stream& stream, const AttentionArgs<T>& args) override {
    Run(stream, "AttentionForward",
        [&](CudaStream& s) { AttentionForwardCuda(s, args); });
  }
  void AttentionBackward(Stream& stream,
                         const AttentionBackwardArgs<T>& args) override {
    Run(stream, "AttentionBackward",
        [&](CudaStream& s) { AttentionBackwardCuda(s, args); });
  }
  void RmsNormForward(Stream& stream, const RmsNormArgs<T>& args) override {
    Run(stream, "RmsNormForward",
        [&](CudaStream& s) { RmsNormForwardCuda(s, args); });
  }
  void RmsNormBackward(Stream& stream,
                       const RmsNormBackwardArgs<T>& args) override {
    Run(stream, "RmsNormBackward",
        [&](CudaStream& s) { RmsNormBackwardCuda(s, args); });
  }
  void Rope(Stream& stream, const RopeArgs<T>& args, float direction) override {
    Run(stream, "Rope", [&](CudaStream& s) { RopeCuda(s, args, direction); });
  }
  void SwigluForward(Stream& stream, const SwigluArgs<T>& args) override {
    Run(stream, "SwigluForward",
        [&](CudaStream& s) { SwigluForwardCuda(s, args); });
  }
  void SwigluBackward(Stream& stream,
                      const SwigluBackwardArgs<T>& args) override {
    Run(stream, "SwigluBackward",
        [&](CudaStream& s) { SwigluBackwardCuda(s, args); });
  }
  void EmbeddingForward(Stream& stream, const EmbeddingArgs<T>& args) override {
    Run(stream, "EmbeddingForward",
        [&](CudaStream& s) { EmbeddingForwardCuda(s, args); });
  }
  void EmbeddingBackward(Stream& stream,
                         const EmbeddingBackwardArgs<T>& args) override {
    Run(stream, "EmbeddingBackward",
        [&](CudaStream& s) { EmbeddingBackwardCuda(s, args); });
  }
  void CrossEntropyMax(Stream& stream, const LogitsView<T>& logits,
                       float* row_max) override {
    Run(stream, "CrossEntropyMax",
        [&](CudaStream& s) { CrossEntropyMaxCuda(s, logits, row_max); });
  }
  void CrossEntropySum(Stream& stream, const LogitsView<T>& logits,
                       const float* row_max, const int32_t* targets,
                       float* sum_exp, float* target_logit) override {
    Run(stream, "CrossEntropySum", [&](CudaStream& s) {
      CrossEntropySumCuda(s, logits, row_max, targets, sum_exp, target_logit);
    });
  }
  void CrossEntropyBackward(Stream& stream, const LogitsView<T>& logits,
                            const float* row_max, const float* sum_exp,
                            const int32_t* targets, const float* weights,
                            T* dlogits, int64_t dlogits_stride) override {
    Run(stream, "CrossEntropyBackward", [&](CudaStream& s) {
      CrossEntropyBackwardCuda(s, logits, row_max, sum_exp, targets, weights,
                               dlogits, dlogits_stride);
    });
  }
  void AdamW(Stream& stream, const AdamWArgs<T>& args) override {
    Run(stream, "AdamW", [&](CudaStream& s) { AdamWCuda(s, args); });
  }
  void Add(Stream& stream, const T* x, const T* y, T* out,
           int64_t count) override {
    Run(stream, "Add", [&](CudaStream& s) { AddCuda(s, x, y, out, count); });
  }
  void Scale(Stream& stream, T* x, float factor, int64_t count) override {
    Run(stream, "Scale",
        [&](CudaStream& s) { ScaleCuda(s, x, factor, count); });
  }
  void Accumulate(Stream& stream, const T* x, float* y,
                  int64_t count) override {
    Run(stream, "Accumulate",
        [&](CudaStream& s) { AccumulateCuda(s, x, y, count); });
  }
  void CastTo(Stream& stream, const T* from, float* to,
              int64_t count) override {
    Run(stream, "Cast", [&](CudaStream& s) { CastCuda(s, from, to, count); });
  }
  void CastTo(Stream& stream, const T* from, Bf16* to, int64_t count) override {
    Run(stream, "Cast", [&](CudaStream& s) { CastCuda(s, from, to, count); });
  }
};

class CudaKernelSet final : public Typed<float, Typed<Bf16, KernelSet>> {
 public:
  explicit CudaKernelSet(std::string description)
      : description_(std::move(description)) {}

  void Matmul(Stream& stream, const MatmulArgs<Bf16, float>& args) override {
    Run(stream, "Matmul", [&](CudaStream& s) { MatmulCuda(s, args); });
  }
  void RopeFillTable(Stream& stream, float* table, int64_t start,
                     int64_t positions, int64_t head_dim,
                     float theta) override {
    Run(stream, "RopeFillTable", [&](CudaStream& s) {
      RopeFillTableCuda(s, table, start, positions, head_dim, theta);
    });
  }
  void CrossEntropyLoss(Stream& stream, int64_t rows, const float* sum_exp,
                        const float* target_logit, const float* weights,
                        float* losses) override {
    Run(stream, "CrossEntropyLoss", [&](CudaStream& s) {
      CrossEntropyLossCuda(s, rows, sum_exp, target_logit, weights, losses);
    });
  }
  void AccumulateMax(Stream& stream, const float* x, float* y,
                     int64_t count) override {
    Run(stream, "AccumulateMax",
        [&](CudaStream& s) { AccumulateMaxCuda(s, x, y, count); });
  }
  void ZeroBytes(Stream& stream, void* data, int64_t bytes) override {
    Run(stream, "Zero", [&](CudaStream& s) { ZeroBytesCuda(s, data, bytes); });
  }
  void BlockSumsOfSquares(Stream& stream, const float* x, int64_t count,
                          double* block_sums) override {
    Run(stream, "BlockSumsOfSquares", [&](CudaStream& s) {
      BlockSumsOfSquaresCuda(s, x, count, block_sums);
    });
  }
  void SumOfSquares(Stream& stream, const float* x, int64_t count,
                    double* total) override {
    Run(stream, "SumOfSquares",
        [&](CudaStream& s) { SumOfSquaresCuda(s, x, count, total); });
  }

  std::string Description() const override { return description_; }

 private:
  const std::string description_;
};

}  // namespace

std::unique_ptr<KernelSet> NewCudaKernelSet(const DeviceInfo& info) {
  // The number of processors decides how cuBLASLt divides a product.
  return std::make_unique<CudaKernelSet>(absl::StrFormat(
      "cuda %s, %s, capability %d.%d, %d processors, %s",
      CudaVersionText(CUDART_VERSION), info.name, info.capability_major,
      info.capability_minor, info.multiprocessors, CudaMatmulDescription()));
}

}  // namespace holdfast::kernels
