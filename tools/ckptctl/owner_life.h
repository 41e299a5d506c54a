// tools/ckptctl/owner_life.h: does the job that owns a run still live?
//
// A courtesy, so that nobody ends a job by pruning under it: what makes pruning
// safe is the claim (ckpt/session/prune_session.h). Any thread; reads
// RUN/status.json and /proc.

#ifndef HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_
#define HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_

#include <string>

#include "ckpt/base/process.h"
#include "ckpt/session/run_files.h"

namespace holdfast::tools {

struct OwnerLife {
  enum class State { kGone, kAlive, kUnknown };
  State state = State::kUnknown;
  std::string why;  // "status.json says that it has finished"
};

// kGone: the run's status.json says that this incarnation has ended, or its
// process was one of this start of this machine, in the pid namespace of this
// process, and is there no longer (or its number is another's). kAlive: it is
// there. kUnknown: a process of anywhere else that has left no last word; two
// containers, or two machines, may well have one host name. `here` is this
// process's.
OwnerLife LookAtOwner(const std::string& run, const ckpt::OwnerClaim& claim,
                      const ckpt::ProcessMark& here);

// Of this machine.
std::string HostName();

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_
