// kernels/cuda_plugin.cu: the entry point of libholdfast_cuda.so.

#include "kernels/cuda_device.h"
#include "kernels/cuda_driver.h"
#include "kernels/device_plugin.h"
#include "kernels/plugin_build.h"

namespace holdfast::kernels {
namespace {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal) {
  absl::StatusOr<std::unique_ptr<CudaDevice>> device = OpenCudaDevice(ordinal);
  if (!device.ok()) return device.status();
  return std::unique_ptr<Device>(*std::move(device));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const DevicePluginEntry*
holdfast_device_plugin() {
  static const DevicePluginEntry entry = {
      .build = HOLDFAST_PLUGIN_BUILD,
      .driver = &CudaDriver,
      .device_count = &CudaDeviceCount,
      .device_info = &CudaDeviceInfo,
      .open_device = &OpenDevice,
  };
  return &entry;
}

}  // namespace holdfast::kernels
