// trainer/process_memory.h: resident memory of this process, from /proc.

#ifndef HOLDFAST_TRAINER_PROCESS_MEMORY_H_
#define HOLDFAST_TRAINER_PROCESS_MEMORY_H_

#include <cstdint>

namespace holdfast::trainer {

// Bytes now and the most there ever were (VmRSS, VmHWM of proc(5)); 0 where
// /proc does not say.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;
};
ProcessMemory ReadProcessMemory();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PROCESS_MEMORY_H_
