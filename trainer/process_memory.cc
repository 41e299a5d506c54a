// trainer/process_memory.cc: reads /proc/self/status.

#include "trainer/process_memory.h"

#include <cstdio>

namespace holdfast::trainer {

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::FILE* const file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return memory;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    long long kib = 0;
    if (std::sscanf(line, "RssAnon: %lld kB", &kib) == 1) {
      memory.anonymous_bytes = kib * 1024;
    } else if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) {
      memory.peak_bytes = kib * 1024;
    }
  }
  std::fclose(file);
  return memory;
}

}  // namespace holdfast::trainer
