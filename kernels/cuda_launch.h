// kernels/cuda_launch.h: the CUDA version of every kernel, as a free function.
//
// The contracts are those of the functions without "Cuda" (kernels/rmsnorm.h
// and the rest), whose arguments have been checked. Each enqueues on the stream
// and returns. Defined, for float and Bf16, in the .cu file named; called by
// CudaKernelSet, which makes the device current before and asks for launch
// errors after.
//
// Counts of 0 launch nothing.

#ifndef HOLDFAST_KERNELS_CUDA_LAUNCH_H_
#define HOLDFAST_KERNELS_CUDA_LAUNCH_H_

#include <cstdint>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_stream.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace holdfast::kernels {

// matmul_cuda.cu: (float, float), (Bf16, float), (Bf16, Bf16)
template <typename T, typename Out>
void MatmulCuda(CudaStream& stream, const MatmulArgs<T, Out>& args);

// attention_cuda.cu
template <typename T>
void AttentionForwardCuda(CudaStream& stream, const AttentionArgs<T>& args);
template <typename T>
void AttentionBackwardCuda(CudaStream& stream,
                           const AttentionBackwardArgs<T>& args);

// rmsnorm_cuda.cu
template <typename T>
void RmsNormForwardCuda(CudaStream& stream, const RmsNormArgs<T>& args);
template <typename T>
void RmsNormBackwardCuda(CudaStream& stream,
                         const RmsNormBackwardArgs<T>& args);

// rope_cuda.cu. `direction` 1 turns forward, -1 back.
template <typename T>
void RopeCuda(CudaStream& stream, const RopeArgs<T>& args, float direction);
void RopeFillTableCuda(CudaStream& stream, float* table, int64_t start,
                       int64_t positions, int64_t head_dim, float theta);

// swiglu_cuda.cu
template <typename T>
void SwigluForwardCuda(CudaStream& stream, const SwigluArgs<T>& args);
template <typename T>
void SwigluBackwardCuda(CudaStream& stream, const SwigluBackwardArgs<T>& args);

// embedding_cuda.cu
template <typename T>
void EmbeddingForwardCuda(CudaStream& stream, const EmbeddingArgs<T>& args);
template <typename T>
void EmbeddingBackwardCuda(CudaStream& stream,
                           const EmbeddingBackwardArgs<T>& args);

// cross_entropy_cuda.cu
template <typename T>
void CrossEntropyMaxCuda(CudaStream& stream, const LogitsView<T>& logits,
                         float* row_max);
template <typename T>
void CrossEntropySumCuda(CudaStream& stream, const LogitsView<T>& logits,
                         const float* row_max, const int32_t* targets,
                         float* sum_exp, float* target_logit);
template <typename T>
void CrossEntropyBackwardCuda(CudaStream& stream, const LogitsView<T>& logits,
                              const float* row_max, const float* sum_exp,
                              const int32_t* targets, const float* weights,
                              T* dlogits, int64_t dlogits_stride);
void CrossEntropyLossCuda(CudaStream& stream, int64_t rows,
                          const float* sum_exp, const float* target_logit,
                          const float* weights, float* losses);

// adamw_cuda.cu
template <typename T>
void AdamWCuda(CudaStream& stream, const AdamWArgs<T>& args);

// elementwise_cuda.cu. Cast: (T, float) and (T, Bf16).
template <typename T>
void AddCuda(CudaStream& stream, const T* x, const T* y, T* out, int64_t count);
template <typename T>
void ScaleCuda(CudaStream& stream, T* x, float factor, int64_t count);
template <typename T>
void AccumulateCuda(CudaStream& stream, const T* x, float* y, int64_t count);
template <typename From, typename To>
void CastCuda(CudaStream& stream, const From* from, To* to, int64_t count);
void ZeroBytesCuda(CudaStream& stream, void* data, int64_t bytes);
void BlockSumsOfSquaresCuda(CudaStream& stream, const float* x, int64_t count,
                            double* block_sums);
void SumOfSquaresCuda(CudaStream& stream, const float* x, int64_t count,
                      double* total);

// accumulate_max_cuda.cu
void AccumulateMaxCuda(CudaStream& stream, const float* x, float* y,
                       int64_t count);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_LAUNCH_H_
