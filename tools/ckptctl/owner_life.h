// tools/ckptctl/owner_life.h: does the job that owns a run still live?
//
// A courtesy, so that nobody ends a job by pruning under it: what makes pruning
// safe is the claim (ckpt/session/prune_session.h). Any thread; reads
// RUN/status.json and /proc.

#ifndef HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_
#define HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_

#include <string>

#include "ckpt/session/run_files.h"

namespace holdfast::tools {

struct OwnerLife {
  enum class State { kGone, kAlive, kUnknown };
  State state = State::kUnknown;
  std::string why;  // "status.json says that it has finished"
};

// kGone: the run's status.json says that this incarnation has ended, or its
// process was one of this host and is there no longer. kAlive: it is there.
// kUnknown: a process of another host that has left no last word.
OwnerLife LookAtOwner(const std::string& run, const ckpt::OwnerClaim& claim);

// Of this machine.
std::string HostName();

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_OWNER_LIFE_H_
