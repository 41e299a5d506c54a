// kernels/cuda_stream.cc: what a stream hands on to its device; plain C++, part
// of the plug-in and of its tests.

#include "kernels/cuda_stream.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda_device.h"

namespace holdfast::kernels {

CudaStream::~CudaStream() {
  if (device_->Close(*this, scratch_) || library_state_ == nullptr) return;
  // The library would wait for the GPU without end when it lets go of this; the
  // end of the process does not.
  static std::mutex mutex;
  static auto* const left = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  left->push_back(std::move(library_state_));
}

const CudaProcessor& CudaStream::processor() const {
  return device_->processor();
}

void CudaStream::Enqueue(std::function<void()>) {
  KERNEL_CHECK(false,
               "host code launched on a stream of a GPU, after %s: every "
               "kernel hands its arguments to the stream's kernel set",
               last_operation());
}

void* CudaStream::ScratchBytes(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  scratch_ = device_->GrowScratch(*this, scratch_, bytes);
  scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  return scratch_;
}

}  // namespace holdfast::kernels
