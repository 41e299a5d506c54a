// kernels/kernel_set.h: the kernels of a device that is not the processor.
//
// The functions of matmul.h, attention.h and the rest are the one way to a
// kernel. Each looks at its stream: a stream without a kernel set runs the
// processor's version (op_cpu.cc); a stream of a GPU hands its arguments, which
// have been checked, to the set's method of the same name, whose contract is
// the function's. Methods enqueue and return; a failed launch is the device's
// error, reported by its next Sync, Query or Record.
//
//   void RmsNormForward(Stream& stream, const RmsNormArgs<T>& args) {
//     if (KernelSet* set = stream.kernel_set()) return set->... (stream, args);
//
// Thread: as for streams, one at a time for each stream.

#ifndef HOLDFAST_KERNELS_KERNEL_SET_H_
#define HOLDFAST_KERNELS_KERNEL_SET_H_

#include <cstdint>
#include <string>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/stream.h"
#include "kernels/swiglu.h"

namespace holdfast::kernels {

// What exists once for each compute type.
template <typename T>
class TypedKernelSet {
 public:
  virtual ~TypedKernelSet() = default;

  virtual void Matmul(Stream&, const MatmulArgs<T, T>&) = 0;
  virtual void AttentionForward(Stream&, const AttentionArgs<T>&) = 0;
  virtual void AttentionBackward(Stream&, const AttentionBackwardArgs<T>&) = 0;
  virtual void RmsNormForward(Stream&, const RmsNormArgs<T>&) = 0;
  virtual void RmsNormBackward(Stream&, const RmsNormBackwardArgs<T>&) = 0;
  // `direction` 1 turns forward, -1 back.
  virtual void Rope(Stream&, const RopeArgs<T>&, float direction) = 0;
  virtual void SwigluForward(Stream&, const SwigluArgs<T>&) = 0;
  virtual void SwigluBackward(Stream&, const SwigluBackwardArgs<T>&) = 0;
  virtual void EmbeddingForward(Stream&, const EmbeddingArgs<T>&) = 0;
  virtual void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs<T>&) = 0;
  virtual void CrossEntropyMax(Stream&, const LogitsView<T>&,
                               float* row_max) = 0;
  virtual void CrossEntropySum(Stream&, const LogitsView<T>&,
                               const float* row_max, const int32_t* targets,
                               float* sum_exp, float* target_logit) = 0;
  virtual void CrossEntropyBackward(Stream&, const LogitsView<T>&,
                                    const float* row_max, const float* sum_exp,
                                    const int32_t* targets,
                                    const float* weights, T* dlogits,
                                    int64_t dlogits_stride) = 0;
  virtual void AdamW(Stream&, const AdamWArgs<T>&) = 0;
  virtual void Add(Stream&, const T* x, const T* y, T* out, int64_t count) = 0;
  virtual void Scale(Stream&, T* x, float factor, int64_t count) = 0;
  virtual void Accumulate(Stream&, const T* x, float* y, int64_t count) = 0;
  virtual void CastTo(Stream&, const T* from, float* to, int64_t count) = 0;
  virtual void CastTo(Stream&, const T* from, Bf16* to, int64_t count) = 0;
};

class KernelSet : public TypedKernelSet<float>, public TypedKernelSet<Bf16> {
 public:
  using TypedKernelSet<float>::Matmul;
  using TypedKernelSet<Bf16>::Matmul;
  virtual void Matmul(Stream&, const MatmulArgs<Bf16, float>&) = 0;

  virtual void RopeFillTable(Stream&, float* table, int64_t start,
                             int64_t positions, int64_t head_dim,
                             float theta) = 0;
  virtual void CrossEntropyLoss(Stream&, int64_t rows, const float* sum_exp,
                                const float* target_logit, const float* weights,
                                float* losses) = 0;
  virtual void AccumulateMax(Stream&, const float* x, float* y,
                             int64_t count) = 0;
  virtual void ZeroBytes(Stream&, void* data, int64_t bytes) = 0;
  virtual void BlockSumsOfSquares(Stream&, const float* x, int64_t count,
                                  double* block_sums) = 0;
  virtual void SumOfSquares(Stream&, const float* x, int64_t count,
                            double* total) = 0;

  // What the bits of a result depend on, for a run's fingerprint.
  virtual std::string Description() const = 0;
};

// The methods of one compute type; null on the processor's streams.
template <typename T>
TypedKernelSet<T>* KernelSetOf(Stream& stream) {
  return stream.kernel_set();
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_KERNEL_SET_H_
