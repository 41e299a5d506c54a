// kernels/device_plugin.h: devices whose code is loaded when a run asks for it.
//
// libholdfast_NAME.so is looked for in $HOLDFAST_PLUGIN_DIR if that is set,
// else beside the running program and in ../lib from there. Program and plug-in
// exchange C++ objects, so both must be of one build: each carries a line of
// text made from the version, the compiler and the headers that both include,
// and lines that differ are refused. A loaded plug-in stays for the life of the
// process.
//
//   HF_ASSIGN_OR_RETURN(DevicePlugin* cuda, LoadDevicePlugin("cuda"));
//   HF_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, cuda->Open(0));
//
// Thread: any. Cost of the first load: the library's own libraries, for CUDA
// some 100 ms; of the first Open of a GPU some 300 ms and MB of its memory.

#ifndef HOLDFAST_KERNELS_DEVICE_PLUGIN_H_
#define HOLDFAST_KERNELS_DEVICE_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/kernel_set.h"

namespace holdfast::kernels {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  int capability_major = 0;
  int capability_minor = 0;
  std::string bus;  // "0000:3b:00.0"
  int multiprocessors = 0;
  int64_t bytes_total = 0;
  int64_t bytes_free = 0;  // At the moment of asking.
};

// What the entry point of a plug-in returns. `build` comes first and stays
// there: it is compared before anything else is touched.
struct DevicePluginEntry {
  const char* build = nullptr;  // DevicePluginBuild() as the plug-in sees it
  absl::StatusOr<std::string> (*driver)() = nullptr;
  absl::StatusOr<int> (*device_count)() = nullptr;
  absl::StatusOr<DeviceInfo> (*device_info)(int ordinal) = nullptr;
  absl::StatusOr<std::unique_ptr<Device>> (*open_device)(int ordinal) = nullptr;
};

// The name and type of the entry point, a C function.
inline constexpr char kDevicePluginSymbol[] = "holdfast_device_plugin";
using DevicePluginFunction = const DevicePluginEntry*();

// The line of this side.
std::string_view DevicePluginBuild();

class DevicePlugin {
 public:
  DevicePlugin(std::string path, void* handle, const DevicePluginEntry* entry)
      : path_(std::move(path)), handle_(handle), entry_(entry) {}

  const std::string& path() const { return path_; }

  // "CUDA 13.0, driver for 13.1". An error says in words that there is no
  // driver, or that it is too old: kFailedPrecondition.
  absl::StatusOr<std::string> Driver() const { return entry_->driver(); }

  // Above 0. Errors as Driver's, or that no device is to be seen.
  absl::StatusOr<int> DeviceCount() const { return entry_->device_count(); }

  absl::StatusOr<DeviceInfo> Info(int ordinal) const {
    return entry_->device_info(ordinal);
  }

  // kInvalidArgument: no such ordinal. kFailedPrecondition: no driver, or a
  // device that the plug-in has no code for.
  absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal) const {
    return entry_->open_device(ordinal);
  }

  // Another C function of the plug-in; null if it has none of that name.
  void* Symbol(const char* name) const;

 private:
  const std::string path_;
  void* const handle_;
  const DevicePluginEntry* const entry_;
};

// kFailedPrecondition says in one line what is wrong: there is no such plug-in,
// with the places looked at; it cannot be loaded, in the loader's words (a
// missing library of CUDA's is named there); its end is missing; it is of
// another build. Loads once
// for each name; later calls return the same object.
absl::StatusOr<DevicePlugin*> LoadDevicePlugin(std::string_view name);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_DEVICE_PLUGIN_H_
