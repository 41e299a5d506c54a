// kernels/embedding_cuda.cu: launches the gather and the sorted additions of
// kernels/cuda_embedding.h.

#include "kernels/cuda_embedding.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_run.h"

namespace holdfast::kernels {

template <typename T>
void EmbeddingForwardCuda(CudaStream& stream, const EmbeddingArgs<T>& args) {
  RunEmbeddingForward(args, DeviceRunner{stream.handle()});
}

template <typename T>
void EmbeddingBackwardCuda(CudaStream& stream,
                           const EmbeddingBackwardArgs<T>& args) {
  if (args.count == 0) return;
  uint32_t* sorted = stream.Scratch<uint32_t>(EmbeddingBackwardScratch(args));
  if (sorted == nullptr) return;
  RunEmbeddingBackward(args, sorted, DeviceRunner{stream.handle()});
}

template void EmbeddingForwardCuda(CudaStream&, const EmbeddingArgs<float>&);
template void EmbeddingForwardCuda(CudaStream&, const EmbeddingArgs<Bf16>&);
template void EmbeddingBackwardCuda(CudaStream&,
                                    const EmbeddingBackwardArgs<float>&);
template void EmbeddingBackwardCuda(CudaStream&,
                                    const EmbeddingBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
