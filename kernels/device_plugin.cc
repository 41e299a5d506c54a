// kernels/device_plugin.cc: finds, loads and compares plug-ins.

#include "kernels/device_plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/plugin_build.h"

namespace holdfast::kernels {
namespace {

std::string FolderOfProgram() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string text(path, static_cast<size_t>(length));
  return text.substr(0, text.rfind('/'));
}

std::vector<std::string> Folders() {
  const char* const chosen = std::getenv("HOLDFAST_PLUGIN_DIR");
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  const std::string program = FolderOfProgram();
  return {program, program + "/../lib"};
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Bytes of a regular file; 0 of anything else.
  uint64_t size() const {
    struct stat about = {};
    return fd_ >= 0 && ::fstat(fd_, &about) == 0 && S_ISREG(about.st_mode)
               ? static_cast<uint64_t>(about.st_size)
               : 0;
  }
  template <typename T>
  bool ReadAt(uint64_t offset, T& value) const {
    return ::pread(fd_, &value, sizeof value, static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof value);
  }

 private:
  const int fd_;
};

// The loader maps a library whose end is missing, a copy cut short, and the
// process dies with SIGBUS when it is touched. Whatever else may be wrong with
// the file the loader says itself.
absl::Status CheckWhole(const std::string& path) {
  const OpenFile file(path);
  Elf64_Ehdr header;
  if (!file.ReadAt(0, header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64) {
    return absl::OkStatus();
  }
  uint64_t end = header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!file.ReadAt(header.e_phoff + i * header.e_phentsize, segment)) break;
    end = std::max(end, segment.p_offset + segment.p_filesz);
  }
  if (file.size() >= end) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s is cut short: it has %d bytes of at least %d; copy it again", path,
      file.size(), end));
}

absl::StatusOr<std::unique_ptr<DevicePlugin>> Load(const std::string& name) {
  const std::string file = "libholdfast_" + name + ".so";
  const std::vector<std::string> folders = Folders();
  std::string path;
  for (const std::string& folder : folders) {
    if (::access((folder + "/" + file).c_str(), F_OK) == 0) {
      path = folder + "/" + file;
      break;
    }
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "device = %s needs the plug-in %s, which is not in %s; build it (CMake "
        "option HOLDFAST_CUDA) or use device = cpu",
        name, file, absl::StrJoin(folders, " or ")));
  }
  const absl::Status whole = CheckWhole(path);
  if (!whole.ok()) return whole;
  // Now, so that what is missing is found here; local, because the program and
  // the plug-in hold copies of the same functions.
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "loading the plug-in for device = %s: %s", name, ::dlerror()));
  }
  const auto function = reinterpret_cast<DevicePluginFunction*>(
      ::dlsym(handle, kDevicePluginSymbol));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is no plug-in for a device: it has no function %s",
                        path, kDevicePluginSymbol));
  }
  const DevicePluginEntry* const entry = function();
  if (entry == nullptr || entry->build == nullptr ||
      entry->build != DevicePluginBuild()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is of another build: it says '%s', this program '%s'; install both "
        "from one build",
        path,
        entry == nullptr || entry->build == nullptr ? "nothing" : entry->build,
        std::string(DevicePluginBuild())));
  }
  return std::make_unique<DevicePlugin>(path, handle, entry);
}

}  // namespace

std::string_view DevicePluginBuild() { return HOLDFAST_PLUGIN_BUILD; }

void* DevicePlugin::Symbol(const char* name) const {
  return ::dlsym(handle_, name);
}

absl::StatusOr<DevicePlugin*> LoadDevicePlugin(std::string_view name) {
  static std::mutex mutex;
  // Never destroyed: devices may outlive static objects.
  static auto* const loaded =
      new std::map<std::string, std::unique_ptr<DevicePlugin>>;
  const std::lock_guard lock(mutex);
  const std::string key(name);
  if (const auto found = loaded->find(key); found != loaded->end()) {
    return found->second.get();
  }
  absl::StatusOr<std::unique_ptr<DevicePlugin>> plugin = Load(key);
  if (!plugin.ok()) return plugin.status();
  return loaded->emplace(key, *std::move(plugin)).first->second.get();
}

}  // namespace holdfast::kernels
