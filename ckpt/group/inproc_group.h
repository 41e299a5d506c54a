// ckpt/group/inproc_group.h: a Group whose ranks are threads of one process.
//
// For a job of one process, and for tests: messages are queued in memory. A
// rank whose Group is destroyed is dead: what is sent to it vanishes.
//
// Thread: each Group is owned by one thread, different Groups by different
// threads. Cost: one lock and one copy a message.

#ifndef HOLDFAST_CKPT_GROUP_INPROC_GROUP_H_
#define HOLDFAST_CKPT_GROUP_INPROC_GROUP_H_

#include <memory>
#include <vector>

#include "ckpt/group/group.h"

namespace holdfast::ckpt {

// One Group for each of `ranks` ranks. All run on this host.
std::vector<std::unique_ptr<Group>> MakeInprocGroups(int ranks);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_INPROC_GROUP_H_
