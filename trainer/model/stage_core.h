// trainer/model/stage_core.h: what layers and ends of a stage share: memory,
// matrix products, norms and the joins over a TP group, for T float and Bf16.
//
// A column-parallel layer has rows of its weight [out, in] on each rank: its
// output needs no join, the gradient of its input does. A row-parallel layer
// has columns of its weight: the other way round.
//
// Inside trainer/model only. Thread: the step thread.

#ifndef HOLDFAST_TRAINER_MODEL_STAGE_CORE_H_
#define HOLDFAST_TRAINER_MODEL_STAGE_CORE_H_

#include <memory>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/device.h"
#include "trainer/model/stage.h"
#include "trainer/model/stage_buffers.h"

namespace holdfast::trainer {

// A linear layer on this rank.
struct Linear {
  int64_t offset = 0;  // of its weight, and of its gradient
  int64_t in = 0;
  int64_t out = 0;
};

template <typename T>
class StageCore {
 public:
  StageCore(const StageOptions& options, const StageOffsets& offsets,
            const std::byte* weights, DeviceCollectives* tp,
            kernels::Device& device);

  // Waits for the stream: it uses the memory that goes.
  ~StageCore() { device.Sync(*stream); }

  // Allocates and fills the table of rotations. Once, before everything else.
  absl::Status Open();

  // y [rows, out] at ldy = x [rows, in] w^T: every rank has all of x and gets
  // its columns of y.
  void ColumnForward(const Linear& linear, const T* x, T* y, int64_t ldy);
  // y [rows, out] = the sum over the TP group of x w^T: each rank has its
  // columns of x and gets all of y. out is hidden.
  absl::Status RowForward(const Linear& linear, const T* x, T* y);
  // dx [rows, in] = dy w: this rank's columns.
  void RowBackwardInput(const Linear& linear, const T* dy, T* dx);
  // scratch.partial (+)= dy w; in is hidden. JoinPartial follows the last one.
  void ColumnBackwardInput(const Linear& linear, const T* dy, int64_t lddy,
                           bool accumulate);
  // gradient += dy^T x
  void BackwardWeight(const Linear& linear, const T* dy, int64_t lddy,
                      const T* x);

  // out [rows, hidden] = scratch.partial summed over the TP group, rounded.
  absl::Status JoinPartial(T* out);
  // Over the TP group, in place; device memory, at most rows * hidden.
  absl::Status JoinSum(float* values, int64_t count);
  absl::Status JoinMax(float* values, int64_t count);

  void NormForward(int64_t weight_offset, const T* x, T* y, float* rstd);
  // dx = the norm's input gradient + residual (which may be null).
  void NormBackward(int64_t weight_offset, const T* x, const float* rstd,
                    const T* dy, const T* residual, T* dx);

  const T* weight(int64_t offset) const { return weights_ + offset; }
  float* gradient(int64_t offset) const { return gradients + offset; }

  // Enqueues a copy between the device's memory and the host's, or within the
  // device's.
  template <typename V>
  void ToDevice(V* device_to, const V* host_from, int64_t count) {
    Copy(device_to, kernels::MemorySpace::kDevice, host_from,
         kernels::MemorySpace::kPinned, count);
  }
  template <typename V>
  void ToHost(V* host_to, const V* device_from, int64_t count) {
    Copy(host_to, kernels::MemorySpace::kPinned, device_from,
         kernels::MemorySpace::kDevice, count);
  }
  template <typename V>
  void Within(V* device_to, const V* device_from, int64_t count) {
    Copy(device_to, kernels::MemorySpace::kDevice, device_from,
         kernels::MemorySpace::kDevice, count);
  }
  // Waits for the stream; what went wrong on it or between ranks.
  absl::Status Sync();

  const StageOptions options;
  const StageShape shape;
  const StageOffsets offsets;
  kernels::Device& device;
  std::unique_ptr<kernels::Stream> stream;

  StageMemory memory;
  std::vector<SlotStash<T>> slots;
  StageScratch<T> scratch;
  StageHostMemory host;
  float* gradients = nullptr;

 private:
  template <typename V>
  void Copy(V* to, kernels::MemorySpace to_space, const V* from,
            kernels::MemorySpace from_space, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(V);
    device.Copy(
        {to_space, reinterpret_cast<std::byte*>(to), bytes},
        {from_space,
         const_cast<std::byte*>(reinterpret_cast<const std::byte*>(from)),
         bytes},
        *stream);
  }

  const T* const weights_;
  DeviceCollectives* const tp_;
  kernels::OwnedBuffer activations_memory_;
  kernels::OwnedBuffer scratch_memory_;
  kernels::OwnedBuffer host_memory_;
};

extern template class StageCore<float>;
extern template class StageCore<kernels::Bf16>;

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_STAGE_CORE_H_
