// kernels/cuda_driver.h: what driver and GPUs this machine has, in words.
//
// Only inside the plug-in. Thread: any.

#ifndef HOLDFAST_KERNELS_CUDA_DRIVER_H_
#define HOLDFAST_KERNELS_CUDA_DRIVER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda_stream.h"
#include "kernels/device_plugin.h"

namespace holdfast::kernels {

// The lowest compute capability that the plug-in has code for: 9.0.
inline constexpr int kCudaCapabilityMin = 90;

// "13.1" of 13010, as the CUDA runtime writes versions.
std::string CudaVersionText(int version);

// What asking for the devices' count came to, in words: OK for a count above 0.
// `driver` is the newest CUDA that the driver supports, 0 without a driver;
// `error` and `words` the runtime's answer. Pure.
enum class CudaCountError {
  kNone,
  kInsufficientDriver,
  kNoDevice,
  kStubLibrary,
  kOther
};
absl::Status ExplainCudaCount(const std::string& host, int driver, int runtime,
                              CudaCountError error, const std::string& words,
                              int count);

// OK when the plug-in can use ordinal `info.ordinal` of `count`. Pure.
absl::Status ExplainCudaOrdinal(int ordinal, int count);
absl::Status ExplainCudaCapability(const std::string& host,
                                   const DeviceInfo& info);

// The GPU, or a library's thread on it, does not come to an end: exit() then
// ends the process with its code at once, without the handlers and destructors
// in which driver and libraries may wait or find their threads at work. Any
// number of times.
void EndWithoutTeardown();

// DevicePluginEntry's functions.
absl::StatusOr<std::string> CudaDriver();
absl::StatusOr<int> CudaDeviceCount();
absl::StatusOr<DeviceInfo> CudaDeviceInfo(int ordinal);

// What launches depend on. kFailedPrecondition: the plug-in has no code for the
// GPU, or it cannot do on this system what the device is built on.
absl::StatusOr<CudaProcessor> AskCudaProcessor(const DeviceInfo& info);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_DRIVER_H_
