// ckpt/base/process.cc: see process.h.

#include "ckpt/base/process.h"

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string LinkText(const char* path) {
  char text[128];
  const ssize_t length = ::readlink(path, text, sizeof text);
  return length <= 0 ? "" : std::string(text, static_cast<size_t>(length));
}

}  // namespace

std::optional<int64_t> StartTicksOf(int64_t pid) {
  // Field 2, the name, may hold anything, spaces, ')' and newlines included.
  std::ifstream file(absl::StrFormat("/proc/%d/stat", pid));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  size_t at = stat.rfind(')');
  if (at == std::string::npos) return std::nullopt;
  for (int field = 2; field < 22; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
  }
  int64_t ticks = 0;
  const auto parsed =
      std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), ticks);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return ticks;
}

ProcessMark MarkOfThisProcess() {
  ProcessMark mark;
  mark.boot = FirstLine("/proc/sys/kernel/random/boot_id");
  mark.namespaces = LinkText("/proc/self/ns/pid");
  // Kernels before 5.6 have none, and count from the machine's start.
  const std::string time = LinkText("/proc/self/ns/time");
  if (!time.empty()) mark.namespaces += " " + time;
  const auto ticks = StartTicksOf(::getpid());
  if (mark.boot.empty() || mark.namespaces.empty() || !ticks) return {};
  mark.start_ticks = *ticks;
  return mark;
}

}  // namespace holdfast::ckpt
