// kernels/cuda_device.h: Device on one CUDA GPU.
//
//   space    memory
//   host     the heap; copies to and from it are staged by the driver
//   pinned   the heap, page-aligned, in huge pages, registered with the driver:
//            io_uring can register the same memory once more
//   shared   as pinned; kernels reach it over the bus at its own address, which
//            a GPU that cannot do that is refused for at opening
//   device   the GPU's, zeroed
//
// Streams do not wait for the legacy default stream.
//
// Waits. All are loops that ask (kernels/cuda_wait.h), sleeping instead of
// spinning, because ranks and the checkpoint thread share the processors; each
// has a name that the thread's listeners learn, and the limit of SetWaitLimit.
// Calls of the runtime that wait on their own, cudaFree and cublasLtDestroy,
// are made when the GPU is known to be idle. After an error the GPU gets ten
// more seconds, once, to come to an end; if it does not, what it may still use
// is neither freed nor destroyed, since that would hang or break memory, and
// goes with the process.
//
// Errors. The first one stays: a refused launch or copy with the name of the
// operation, a failed kernel when a Sync or Query finds it, with the name of
// the last operation launched on that stream (CUDA_LAUNCH_BLOCKING=1 in the
// environment makes it the exact one). From then on nothing waits.
//
// Only inside the plug-in. Thread: any; a stream belongs to one at a time. Each
// call makes the device current in its thread.

#ifndef HOLDFAST_KERNELS_CUDA_DEVICE_H_
#define HOLDFAST_KERNELS_CUDA_DEVICE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda_stream.h"
#include "kernels/device.h"

namespace holdfast::kernels {

// Ready work of a high stream starts before that of normal ones.
enum class CudaPriority { kNormal, kHigh };

class CudaDevice : public Device {
 public:
  virtual const CudaProcessor& processor() const = 0;

  // In the calling thread.
  virtual void MakeCurrent() = 0;

  // Keeps `what` as the device's error if it is the first: what was done, and
  // the library's words.
  virtual void Fail(const std::string& what) = 0;

  // Asks the runtime for the error of the calls just made, and keeps it.
  virtual void CheckLaunch(const char* operation) = 0;

  virtual std::unique_ptr<CudaStream> NewCudaStream(CudaPriority priority) = 0;

 protected:
  friend class CudaStream;
  virtual void* GrowScratch(CudaStream& stream, void* old, size_t bytes) = 0;
  // Waits for the stream and gives it and its scratch back. False when the GPU
  // has failed and does not come to an end: then nothing of it may be touched.
  virtual bool Close(CudaStream& stream, void* scratch) = 0;
};

// Errors as DevicePlugin::Open (kernels/device_plugin.h).
absl::StatusOr<std::unique_ptr<CudaDevice>> OpenCudaDevice(int ordinal);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_DEVICE_H_
