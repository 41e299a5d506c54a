// A plug-in whose build is the macro's: what LoadDevicePlugin makes of it.

#include "kernels/device_plugin.h"
#include "kernels/plugin_build.h"

#ifndef HOLDFAST_TEST_PLUGIN_BUILD
#define HOLDFAST_TEST_PLUGIN_BUILD HOLDFAST_PLUGIN_BUILD
#endif

namespace holdfast::kernels {

extern "C" const DevicePluginEntry* holdfast_device_plugin() {
  static const DevicePluginEntry entry = {
      .build = HOLDFAST_TEST_PLUGIN_BUILD,
      .driver = [] { return absl::StatusOr<std::string>("a driver"); },
      .device_count = [] { return absl::StatusOr<int>(2); },
      .device_info =
          [](int ordinal) {
            DeviceInfo info;
            info.ordinal = ordinal;
            info.name = "a device";
            return absl::StatusOr<DeviceInfo>(info);
          },
      .open_device =
          [](int ordinal) -> absl::StatusOr<std::unique_ptr<Device>> {
        return absl::InvalidArgumentError(
            ordinal == 7 ? "seven was asked for" : "another was asked for");
      },
  };
  return &entry;
}

extern "C" int holdfast_test_symbol() { return 41; }

}  // namespace holdfast::kernels
