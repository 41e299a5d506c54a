// trainer/process_memory.h: resident memory of this process, from /proc.

#ifndef HOLDFAST_TRAINER_PROCESS_MEMORY_H_
#define HOLDFAST_TRAINER_PROCESS_MEMORY_H_

#include <cstdint>

namespace holdfast::trainer {

// Bytes; 0 where /proc does not say (proc(5): RssAnon, VmHWM).
// `anonymous_bytes` leaves out file pages, which the kernel takes back when it
// wants to: mapped token files would otherwise count as memory of the model.
struct ProcessMemory {
  int64_t anonymous_bytes = 0;  // now
  int64_t peak_bytes = 0;       // the most that ever was resident
};
ProcessMemory ReadProcessMemory();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PROCESS_MEMORY_H_
