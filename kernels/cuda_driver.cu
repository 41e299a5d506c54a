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
    case cudaErrorStubLibrary:
      return CudaCountError::kStubLibrary;
    default:
      return CudaCountError::kOther;
  }
}

struct Versions {
  int driver = 0;  // 0: none
  int runtime = 0;
};

// One that cannot be had stays 0; what that means, the count of GPUs says.
Versions AskVersions() {
  Versions versions;
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) {
    versions.driver = 0;
  }
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) {
    versions.runtime = 0;
  }
  cudaGetLastError();
  return versions;
}

}  // namespace

absl::StatusOr<int> CudaDeviceCount() {
  const Versions versions = AskVersions();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();  // it has been seen
  const absl::Status status =
      ExplainCudaCount(HostName(), versions.driver, versions.runtime,
                       KindOf(error), Words(error), count);
  if (!status.ok()) return status;
  return count;
}

absl::StatusOr<std::string> CudaDriver() {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (!count.ok()) return count.status();
  const Versions versions = AskVersions();
  return absl::StrFormat("CUDA %s, driver for %s",
                         CudaVersionText(versions.runtime),
                         CudaVersionText(versions.driver));
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

absl::StatusOr<CudaProcessor> AskCudaProcessor(const DeviceInfo& info) {
  const std::string host = HostName();
  const absl::Status usable = ExplainCudaCapability(host, info);
  if (!usable.ok()) return usable;
  CudaProcessor processor;
  processor.ordinal = info.ordinal;
  processor.capability = 10 * info.capability_major + info.capability_minor;
  processor.multiprocessors = info.multiprocessors;
  // The last two: a kernel stores into pinned memory at the host's own address
  // (MemorySpace::kShared), which the runtime allows where the attribute says
  // so, and scratch is allocated in the order of a stream.
  int pins = 0, own_address = 0, pools = 0;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
    const char* lacks;  // in words, where 0 will not do
  } questions[] = {
      {cudaDevAttrMaxSharedMemoryPerBlockOptin,
       &processor.shared_bytes_per_block, nullptr},
      {cudaDevAttrHostRegisterSupported, &pins,
       "cannot pin memory of the heap (cudaHostRegister)"},
      {cudaDevAttrCanUseHostPointerForRegisteredMem, &own_address,
       "cannot reach pinned memory at the host's address"},
      {cudaDevAttrMemoryPoolsSupported, &pools,
       "has no memory pools (cudaMallocAsync)"},
  };
  for (const auto& question : questions) {
    const cudaError_t error = cudaDeviceGetAttribute(
        question.value, question.attribute, info.ordinal);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return absl::UnavailableError(
          absl::StrFormat("asking GPU %d of %s what it can do: %s",
                          info.ordinal, host, Words(error)));
    }
    if (question.lacks != nullptr && *question.value == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "GPU %d of %s, %s, %s on this system; use device = cpu", info.ordinal,
          host, info.name, question.lacks));
    }
  }
  return processor;
}

}  // namespace holdfast::kernels
