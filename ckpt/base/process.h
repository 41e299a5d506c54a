// ckpt/base/process.h: which process this is, told apart from every other one
// of every machine, for records that outlive it.
//
// A number alone does not say it: it is used again, and each container counts
// its own. From /proc (proc(5), namespaces(7)); any thread; three small reads.

#ifndef HOLDFAST_CKPT_BASE_PROCESS_H_
#define HOLDFAST_CKPT_BASE_PROCESS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::ckpt {

// What belongs to a process number. Empty where /proc does not say: then nobody
// can be told apart.
struct ProcessMark {
  // Drawn by the kernel at each start of the machine.
  std::string boot;
  // "pid:[4026531836] time:[4026531834]": who counts the numbers, and from when
  // on ticks are counted. Namespaces of other containers differ; a namespace's
  // own number comes again only when all of its processes are gone.
  std::string namespaces;
  int64_t start_ticks = 0;  // since the machine's start

  bool empty() const { return boot.empty(); }
  friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};

ProcessMark MarkOfThisProcess();

// Of a process of this one's namespace; nothing when there is none, or when
// /proc hides it (hidepid).
std::optional<int64_t> StartTicksOf(int64_t pid);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_PROCESS_H_
