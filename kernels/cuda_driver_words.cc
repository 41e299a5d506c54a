// kernels/cuda_driver_words.cc: the messages of kernels/cuda_driver.h; plain
// C++, part of the plug-in and of its tests.

#include <cstdlib>

#include "absl/strings/str_format.h"
#include "kernels/cuda_driver.h"

namespace holdfast::kernels {

std::string CudaVersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

absl::Status ExplainCudaCount(const std::string& host, int driver, int runtime,
                              CudaCountError error, const std::string& words,
                              int count) {
  if (error == CudaCountError::kInsufficientDriver && driver == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "no NVIDIA driver on %s: device = cuda needs one; use device = cpu",
        host));
  }
  if (error == CudaCountError::kInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the NVIDIA driver on %s is too old: it supports CUDA %s, and this "
        "build needs %s; update the driver or use device = cpu",
        host, CudaVersionText(driver), CudaVersionText(runtime)));
  }
  if (error == CudaCountError::kNoDevice ||
      (error == CudaCountError::kNone && count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return absl::FailedPreconditionError(absl::StrFormat(
        "the NVIDIA driver on %s shows no GPU%s; use device = cpu", host,
        visible == nullptr
            ? std::string()
            : absl::StrFormat(" (CUDA_VISIBLE_DEVICES is '%s')", visible)));
  }
  if (error == CudaCountError::kStubLibrary) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "libcuda.so.1 on %s is the CUDA toolkit's stub, which is for linking: "
        "take its folder off LD_LIBRARY_PATH, or use device = cpu where there "
        "is no driver",
        host));
  }
  if (error != CudaCountError::kNone) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "asking the NVIDIA driver on %s for its GPUs: %s; see whether "
        "nvidia-smi works there, or use device = cpu",
        host, words));
  }
  return absl::OkStatus();
}

absl::Status ExplainCudaOrdinal(int ordinal, int count) {
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "GPU %d does not exist: the driver shows %d, numbered from 0", ordinal,
      count));
}

absl::Status ExplainCudaCapability(const std::string& host,
                                   const DeviceInfo& info) {
  const int capability = 10 * info.capability_major + info.capability_minor;
  if (capability >= kCudaCapabilityMin) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "GPU %d of %s, %s, has compute capability %d.%d, and this build has code "
      "for %d.%d and later; use device = cpu",
      info.ordinal, host, info.name, info.capability_major,
      info.capability_minor, kCudaCapabilityMin / 10, kCudaCapabilityMin % 10));
}

}  // namespace holdfast::kernels
