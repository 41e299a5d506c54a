// kernels/cuda_driver.cu: asks the CUDA runtime.

#include <cuda_runtime.h>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "kernels/cuda_driver.h"

namespace holdfast::kernels {
namespace {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

std::string Words(cudaError_t error) {
  return absl::StrFormat("%s (%s)", cudaGetErrorString(error),
                         cudaGetErrorName(error));
}

CudaCountError KindOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return CudaCountError::kNone;
    case cudaErrorInsufficientDriver:
      return CudaCountError::kInsufficientDriver;
    case cudaErrorNoDevice:
      return CudaCountError::kNoDevice;
    default:
      return CudaCountError::kOther;
  }
}

}  // namespace

absl::StatusOr<int> CudaDeviceCount() {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();  // it has been seen
  const absl::Status status = ExplainCudaCount(
      HostName(), driver, runtime, KindOf(error), Words(error), count);
  if (!status.ok()) return status;
  return count;
}

absl::StatusOr<std::string> CudaDriver() {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (!count.ok()) return count.status();
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return absl::StrFormat("CUDA %s, driver for %s", CudaVersionText(runtime),
                         CudaVersionText(driver));
}

absl::StatusOr<DeviceInfo> CudaDeviceInfo(int ordinal) {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (!count.ok()) return count.status();
  const absl::Status exists = ExplainCudaOrdinal(ordinal, *count);
  if (!exists.ok()) return exists;
  DeviceInfo info;
  info.ordinal = ordinal;
  cudaDeviceProp properties;
  char bus[32] = {};
  size_t free = 0, total = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
  if (error == cudaSuccess) {
    error = cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal);
  }
  if (error == cudaSuccess) error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(
        absl::StrFormat("asking GPU %d of %s what it is: %s", ordinal,
                        HostName(), Words(error)));
  }
  info.name = properties.name;
  info.capability_major = properties.major;
  info.capability_minor = properties.minor;
  info.bus = bus;
  info.multiprocessors = properties.multiProcessorCount;
  info.bytes_total = static_cast<int64_t>(total);
  info.bytes_free = static_cast<int64_t>(free);
  return info;
}

}  // namespace holdfast::kernels
