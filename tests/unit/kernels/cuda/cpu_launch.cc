// tests/unit/kernels/cuda/cpu_launch.cc: the functions of kernels/cuda_launch.h
// done by the processor at once (but products, which are the real ones), so
// that what the kernel set hands over shows in results.

#include "kernels/cuda_launch.h"
#include "kernels/elementwise.h"

namespace holdfast::kernels {

template <typename T>
void AttentionForwardCuda(CudaStream&, const AttentionArgs<T>& args) {
  AttentionForward(CpuStream(), args);
}
template <typename T>
void AttentionBackwardCuda(CudaStream&, const AttentionBackwardArgs<T>& args) {
  AttentionBackward(CpuStream(), args);
}
template <typename T>
void RmsNormForwardCuda(CudaStream&, const RmsNormArgs<T>& args) {
  RmsNormForward(CpuStream(), args);
}
template <typename T>
void RmsNormBackwardCuda(CudaStream&, const RmsNormBackwardArgs<T>& args) {
  RmsNormBackward(CpuStream(), args);
}
template <typename T>
void RopeCuda(CudaStream&, const RopeArgs<T>& args, float direction) {
  direction > 0 ? RopeForward(CpuStream(), args)
                : RopeBackward(CpuStream(), args);
}
void RopeFillTableCuda(CudaStream&, float* table, int64_t start,
                       int64_t positions, int64_t head_dim, float theta) {
  RopeFillTable(CpuStream(), table, start, positions, head_dim, theta);
}
template <typename T>
void SwigluForwardCuda(CudaStream&, const SwigluArgs<T>& args) {
  SwigluForward(CpuStream(), args);
}
template <typename T>
void SwigluBackwardCuda(CudaStream&, const SwigluBackwardArgs<T>& args) {
  SwigluBackward(CpuStream(), args);
}
template <typename T>
void EmbeddingForwardCuda(CudaStream&, const EmbeddingArgs<T>& args) {
  EmbeddingForward(CpuStream(), args);
}
template <typename T>
void EmbeddingBackwardCuda(CudaStream&, const EmbeddingBackwardArgs<T>& args) {
  EmbeddingBackward(CpuStream(), args);
}
template <typename T>
void CrossEntropyMaxCuda(CudaStream&, const LogitsView<T>& logits,
                         float* row_max) {
  CrossEntropyMax(CpuStream(), logits, row_max);
}
template <typename T>
void CrossEntropySumCuda(CudaStream&, const LogitsView<T>& logits,
                         const float* row_max, const int32_t* targets,
                         float* sum_exp, float* target_logit) {
  CrossEntropySum(CpuStream(), logits, row_max, targets, sum_exp, target_logit);
}
template <typename T>
void CrossEntropyBackwardCuda(CudaStream&, const LogitsView<T>& logits,
                              const float* row_max, const float* sum_exp,
                              const int32_t* targets, const float* weights,
                              T* dlogits, int64_t dlogits_stride) {
  CrossEntropyBackward(CpuStream(), logits, row_max, sum_exp, targets, weights,
                       dlogits, dlogits_stride);
}
void CrossEntropyLossCuda(CudaStream&, int64_t rows, const float* sum_exp,
                          const float* target_logit, const float* weights,
                          float* losses) {
  CrossEntropyLoss(CpuStream(), rows, sum_exp, target_logit, weights, losses);
}
template <typename T>
void AdamWCuda(CudaStream&, const AdamWArgs<T>& args) {
  AdamW(CpuStream(), args);
}
template <typename T>
void AddCuda(CudaStream&, const T* x, const T* y, T* out, int64_t count) {
  Add(CpuStream(), x, y, out, count);
}
template <typename T>
void ScaleCuda(CudaStream&, T* x, float factor, int64_t count) {
  Scale(CpuStream(), x, factor, count);
}
template <typename T>
void AccumulateCuda(CudaStream&, const T* x, float* y, int64_t count) {
  Accumulate(CpuStream(), x, y, count);
}
void AccumulateMaxCuda(CudaStream&, const float* x, float* y, int64_t count) {
  AccumulateMax(CpuStream(), x, y, count);
}
template <typename From, typename To>
void CastCuda(CudaStream&, const From* from, To* to, int64_t count) {
  Cast(CpuStream(), from, to, count);
}
void ZeroBytesCuda(CudaStream&, void* data, int64_t bytes) {
  // In floats, as all callers have them.
  Zero(CpuStream(), static_cast<float*>(data),
       bytes / static_cast<int64_t>(sizeof(float)));
}
void BlockSumsOfSquaresCuda(CudaStream&, const float* x, int64_t count,
                            double* block_sums) {
  BlockSumsOfSquares(CpuStream(), x, count, block_sums);
}
void SumOfSquaresCuda(CudaStream&, const float* x, int64_t count,
                      double* total) {
  SumOfSquares(CpuStream(), x, count, total);
}

#define HF_BOTH_TYPES(T)                                                       \
  template void AttentionForwardCuda(CudaStream&, const AttentionArgs<T>&);    \
  template void AttentionBackwardCuda(CudaStream&,                             \
                                      const AttentionBackwardArgs<T>&);        \
  template void RmsNormForwardCuda(CudaStream&, const RmsNormArgs<T>&);        \
  template void RmsNormBackwardCuda(CudaStream&,                               \
                                    const RmsNormBackwardArgs<T>&);            \
  template void RopeCuda(CudaStream&, const RopeArgs<T>&, float);              \
  template void SwigluForwardCuda(CudaStream&, const SwigluArgs<T>&);          \
  template void SwigluBackwardCuda(CudaStream&, const SwigluBackwardArgs<T>&); \
  template void EmbeddingForwardCuda(CudaStream&, const EmbeddingArgs<T>&);    \
  template void EmbeddingBackwardCuda(CudaStream&,                             \
                                      const EmbeddingBackwardArgs<T>&);        \
  template void CrossEntropyMaxCuda(CudaStream&, const LogitsView<T>&,         \
                                    float*);                                   \
  template void CrossEntropySumCuda(CudaStream&, const LogitsView<T>&,         \
                                    const float*, const int32_t*, float*,      \
                                    float*);                                   \
  template void CrossEntropyBackwardCuda(                                      \
      CudaStream&, const LogitsView<T>&, const float*, const float*,           \
      const int32_t*, const float*, T*, int64_t);                              \
  template void AdamWCuda(CudaStream&, const AdamWArgs<T>&);                   \
  template void AddCuda(CudaStream&, const T*, const T*, T*, int64_t);         \
  template void ScaleCuda(CudaStream&, T*, float, int64_t);                    \
  template void AccumulateCuda(CudaStream&, const T*, float*, int64_t);        \
  template void CastCuda(CudaStream&, const T*, float*, int64_t);              \
  template void CastCuda(CudaStream&, const T*, Bf16*, int64_t);
HF_BOTH_TYPES(float)
HF_BOTH_TYPES(Bf16)
#undef HF_BOTH_TYPES

}  // namespace holdfast::kernels
