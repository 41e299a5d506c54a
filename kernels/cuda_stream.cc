// kernels/cuda_stream.cc: what a stream hands on to its device; plain C++, part
// of the plug-in and of its tests.

#include "kernels/cuda_stream.h"

#include "kernels/check.h"
#include "kernels/cuda_device.h"

namespace holdfast::kernels {

CudaStream::~CudaStream() { device_->Close(*this, scratch_); }

const CudaProcessor& CudaStream::processor() const {
  return device_->processor();
}

void CudaStream::Enqueue(std::function<void()>) {
  KERNEL_CHECK(false,
               "host code launched on a stream of a GPU, after %s: every "
               "kernel hands its arguments to the stream's kernel set",
               last_operation_);
}

void* CudaStream::ScratchBytes(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  scratch_ = device_->GrowScratch(*this, scratch_, bytes);
  scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  return scratch_;
}

}  // namespace holdfast::kernels
