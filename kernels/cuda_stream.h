// kernels/cuda_stream.h: a CUDA stream, and what a launcher asks of it.
//
// A launcher (kernels/cuda_launch.h) has the stream's device current, launches
// on handle() and returns; a launch that the driver refused is found by its
// caller, and a kernel that failed by the device's next Sync.
//
//   float* partial = stream.Scratch<float>(blocks * hidden);
//   if (partial == nullptr) return;  // No memory: the device's status says so.
//   Partial<<<blocks, kThreads, 0, stream.handle()>>>(..., partial);
//
// Plain C++: the CUDA runtime's own header stays in the .cu files.
//
// Thread: one at a time, as every Stream.

#ifndef HOLDFAST_KERNELS_CUDA_STREAM_H_
#define HOLDFAST_KERNELS_CUDA_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "kernels/stream.h"

// As cuda_runtime.h declares it.
typedef struct CUstream_st* cudaStream_t;

namespace holdfast::kernels {

class CudaDevice;

// What launch sizes depend on. No result may: a sum's order is a function of
// the shape alone.
struct CudaProcessor {
  int ordinal = 0;
  int capability = 0;  // 90, 100
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  // the most that a kernel may opt in to
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice* device, cudaStream_t handle, KernelSet* kernel_set)
      : Stream(/*immediate=*/false, kernel_set),
        device_(device),
        handle_(handle) {}
  ~CudaStream() override;  // Waits for what is enqueued, as Device::Sync does.

  cudaStream_t handle() const { return handle_; }
  CudaDevice& device() const { return *device_; }
  const CudaProcessor& processor() const;

  // Device memory of this stream, aligned to 256 bytes, contents undefined. It
  // is the caller's until the next call on this stream: work enqueued before
  // that call is done with it before later work touches it. One call a
  // launcher: cut it into parts. Grows by stream-ordered allocation with the
  // largest request so far, then stands. Null when there is no more memory,
  // which is then the device's error.
  template <typename T>
  T* Scratch(int64_t count) {
    return static_cast<T*>(
        ScratchBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  size_t scratch_bytes() const { return scratch_bytes_; }

  // What the library of matrix products keeps for this stream: its handle and
  // the algorithms it has chosen. Goes with the stream, after its last work.
  std::shared_ptr<void>& library_state() { return library_state_; }

  // The operation that an error found later is reported with: a literal.
  // Any thread may read it, to name what it waits for.
  void set_last_operation(const char* name) {
    last_operation_.store(name, std::memory_order_relaxed);
  }
  const char* last_operation() const {
    return last_operation_.load(std::memory_order_relaxed);
  }

 private:
  // Host code on a GPU's stream is our own bug: CHECK-fails.
  void Enqueue(std::function<void()> work) override;
  void* ScratchBytes(size_t bytes);

  CudaDevice* const device_;
  const cudaStream_t handle_;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::shared_ptr<void> library_state_;
  std::atomic<const char*> last_operation_{"nothing"};
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_STREAM_H_
