// tests/support/gpu_kernels_on_host.cc: the kernel set of that device.

#include "tests/support/gpu_kernels_on_host.h"

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "ckpt/base/check.h"
#include "kernels/cuda_accumulate_max.h"
#include "kernels/cuda_adamw.h"
#include "kernels/cuda_attention_host.h"
#include "kernels/cuda_attention_run.h"
#include "kernels/cuda_cross_entropy.h"
#include "kernels/cuda_elementwise.h"
#include "kernels/cuda_embedding.h"
#include "kernels/cuda_host_block.h"
#include "kernels/cuda_rmsnorm.h"
#include "kernels/cuda_rope.h"
#include "kernels/cuda_swiglu.h"
#include "kernels/kernel_set.h"

namespace holdfast::tests {
namespace {

using namespace kernels;  // NOLINT: all of it is named below.

constexpr HostRunner kRun;

// Scratch as a GPU's stream gives it: of no defined value.
template <typename T>
std::vector<T> Scratch(int64_t count) {
  std::vector<T> scratch(static_cast<size_t>(count));
  if (count > 0) {
    std::memset(static_cast<void*>(scratch.data()), 0xa5,
                scratch.size() * sizeof(T));
  }
  return scratch;
}

template <typename T, typename Base>
class Typed : public Base {
 public:
  void Matmul(Stream&, const MatmulArgs<T, T>& args) override {
    kernels::Matmul(CpuStream(), args);
  }
  void AttentionForward(Stream&, const AttentionArgs<T>& args) override {
    RunAttentionForward(args, AttentionHostRunner());
  }
  void AttentionBackward(Stream&,
                         const AttentionBackwardArgs<T>& args) override {
    auto scratch = Scratch<float>(AttentionBackwardScratch<T>(args.shape));
    RunAttentionBackward(args, scratch.data(), AttentionHostRunner());
  }
  void RmsNormForward(Stream&, const RmsNormArgs<T>& args) override {
    RunRmsNormForward(args, kRun);
  }
  void RmsNormBackward(Stream&, const RmsNormBackwardArgs<T>& args) override {
    auto scratch = Scratch<float>(RmsNormBackwardScratch(args));
    RunRmsNormBackward(args, scratch.data(), kRun);
  }
  void Rope(Stream&, const RopeArgs<T>& args, float direction) override {
    RunRope(args, direction, kRun);
  }
  void SwigluForward(Stream&, const SwigluArgs<T>& args) override {
    RunSwigluForward(args, kRun);
  }
  void SwigluBackward(Stream&, const SwigluBackwardArgs<T>& args) override {
    RunSwigluBackward(args, kRun);
  }
  void EmbeddingForward(Stream&, const EmbeddingArgs<T>& args) override {
    RunEmbeddingForward(args, kRun);
  }
  void EmbeddingBackward(Stream&,
                         const EmbeddingBackwardArgs<T>& args) override {
    auto scratch = Scratch<uint32_t>(EmbeddingBackwardScratch(args));
    RunEmbeddingBackward(args, scratch.data(), kRun);
  }
  void CrossEntropyMax(Stream&, const LogitsView<T>& logits,
                       float* row_max) override {
    RunCrossEntropyMax(logits, row_max, kRun);
  }
  void CrossEntropySum(Stream&, const LogitsView<T>& logits,
                       const float* row_max, const int32_t* targets,
                       float* sum_exp, float* target_logit) override {
    RunCrossEntropySum(logits, row_max, targets, sum_exp, target_logit, kRun);
  }
  void CrossEntropyBackward(Stream&, const LogitsView<T>& logits,
                            const float* row_max, const float* sum_exp,
                            const int32_t* targets, const float* weights,
                            T* dlogits, int64_t dlogits_stride) override {
    RunCrossEntropyBackward(logits, row_max, sum_exp, targets, weights, dlogits,
                            dlogits_stride, kRun);
  }
  void AdamW(Stream&, const AdamWArgs<T>& args) override {
    RunAdamW(args, kRun);
  }
  void Add(Stream&, const T* x, const T* y, T* out, int64_t count) override {
    RunAdd(x, y, out, count, kRun);
  }
  void Scale(Stream&, T* x, float factor, int64_t count) override {
    RunScale(x, factor, count, kRun);
  }
  void Accumulate(Stream&, const T* x, float* y, int64_t count) override {
    RunAccumulate(x, y, count, kRun);
  }
  void CastTo(Stream&, const T* from, float* to, int64_t count) override {
    RunCast(from, to, count, kRun);
  }
  void CastTo(Stream&, const T* from, Bf16* to, int64_t count) override {
    RunCast(from, to, count, kRun);
  }
};

class Set final : public Typed<float, Typed<Bf16, KernelSet>> {
 public:
  void Matmul(Stream&, const MatmulArgs<Bf16, float>& args) override {
    kernels::Matmul(CpuStream(), args);
  }
  void RopeFillTable(Stream&, float* table, int64_t start, int64_t positions,
                     int64_t head_dim, float theta) override {
    kernels::RopeFillTable(CpuStream(), table, start, positions, head_dim,
                           theta);
  }
  void CrossEntropyLoss(Stream&, int64_t rows, const float* sum_exp,
                        const float* target_logit, const float* weights,
                        float* losses) override {
    RunCrossEntropyLoss(rows, sum_exp, target_logit, weights, losses, kRun);
  }
  void AccumulateMax(Stream&, const float* x, float* y,
                     int64_t count) override {
    kRun(AccumulateMaxKernel{x, y, count},
         CeilDivide(count, AccumulateMaxKernel::kThreads));
  }
  void ZeroBytes(Stream&, void* data, int64_t bytes) override {
    if (bytes > 0) std::memset(data, 0, static_cast<size_t>(bytes));
  }
  void BlockSumsOfSquares(Stream&, const float* x, int64_t count,
                          double* block_sums) override {
    RunBlockSums(x, count, block_sums, kRun);
  }
  void SumOfSquares(Stream&, const float* x, int64_t count,
                    double* total) override {
    auto scratch = Scratch<double>(SumOfSquaresScratch(count));
    RunSumOfSquares(x, count, total, scratch.data(), kRun);
  }
  std::string Description() const override { return "a GPU's, on the host"; }
};

class StreamWithSet final : public Stream {
 public:
  explicit StreamWithSet(KernelSet* set) : Stream(/*immediate=*/true, set) {}

 private:
  void Enqueue(std::function<void()>) override {
    HF_CHECK(false, "an immediate stream");
  }
};

class GpuKernelsOnHost final : public Device {
 public:
  std::string_view name() const override { return "host"; }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    return memory_->Allocate(space, bytes);
  }
  void Free(const Buffer& buffer) override { memory_->Free(buffer); }
  std::unique_ptr<Stream> NewStream() override {
    return std::make_unique<StreamWithSet>(&set_);
  }
  void Copy(const Buffer& dst, const Buffer& src, Stream&) override {
    memory_->Copy(dst, src, CpuStream());
  }
  Event Record(Stream&) override { return Event::kPassed; }
  void WaitFor(Stream&, Event) override {}
  bool Query(Event) override { return true; }
  void Sync(Event) override {}
  void Sync(Stream&) override {}

 private:
  const std::unique_ptr<Device> memory_ = NewCpuDevice();
  Set set_;
};

}  // namespace

std::unique_ptr<kernels::Device> NewGpuKernelsOnHost() {
  return std::make_unique<GpuKernelsOnHost>();
}

}  // namespace holdfast::tests
