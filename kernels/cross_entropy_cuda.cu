// kernels/cross_entropy_cuda.cu: launches the rows of
// kernels/cuda_cross_entropy.h.

#include "kernels/cuda_cross_entropy.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

template <typename T>
void CrossEntropyMaxCuda(CudaStream& stream, const LogitsView<T>& logits,
                         float* row_max) {
  RunCrossEntropyMax(logits, row_max, DeviceRunner{stream.handle()});
}

template <typename T>
void CrossEntropySumCuda(CudaStream& stream, const LogitsView<T>& logits,
                         const float* row_max, const int32_t* targets,
                         float* sum_exp, float* target_logit) {
  RunCrossEntropySum(logits, row_max, targets, sum_exp, target_logit,
                     DeviceRunner{stream.handle()});
}

template <typename T>
void CrossEntropyBackwardCuda(CudaStream& stream, const LogitsView<T>& logits,
                              const float* row_max, const float* sum_exp,
                              const int32_t* targets, const float* weights,
                              T* dlogits, int64_t dlogits_stride) {
  RunCrossEntropyBackward(logits, row_max, sum_exp, targets, weights, dlogits,
                          dlogits_stride, DeviceRunner{stream.handle()});
}

void CrossEntropyLossCuda(CudaStream& stream, int64_t rows,
                          const float* sum_exp, const float* target_logit,
                          const float* weights, float* losses) {
  RunCrossEntropyLoss(rows, sum_exp, target_logit, weights, losses,
                      DeviceRunner{stream.handle()});
}

template void CrossEntropyMaxCuda(CudaStream&, const LogitsView<float>&,
                                  float*);
template void CrossEntropyMaxCuda(CudaStream&, const LogitsView<Bf16>&, float*);
template void CrossEntropySumCuda(CudaStream&, const LogitsView<float>&,
                                  const float*, const int32_t*, float*, float*);
template void CrossEntropySumCuda(CudaStream&, const LogitsView<Bf16>&,
                                  const float*, const int32_t*, float*, float*);
template void CrossEntropyBackwardCuda(CudaStream&, const LogitsView<float>&,
                                       const float*, const float*,
                                       const int32_t*, const float*, float*,
                                       int64_t);
template void CrossEntropyBackwardCuda(CudaStream&, const LogitsView<Bf16>&,
                                       const float*, const float*,
                                       const int32_t*, const float*, Bf16*,
                                       int64_t);

}  // namespace holdfast::kernels
