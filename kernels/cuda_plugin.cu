// kernels/cuda_plugin.cu: the entry point of libholdfast_cuda.so.

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

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

void EndWithoutTeardown() {
  // The last that is registered runs first.
  static const int registered = ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
  static_cast<void>(registered);  // 0, or there is no memory for one: as before
}

extern "C" __attribute__((visibility("default"))) const DevicePluginEntry*
holdfast_device_plugin() {
  // Before the driver starts, which reads it then: a rank of a pipeline has
  // some twelve streams, and by default the driver puts them into eight queues,
  // where work can stand behind a message that waits for another rank.
  static const int queues =
      ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  static_cast<void>(queues);
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
