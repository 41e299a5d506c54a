// ckpt/group/local_group.h: a Group whose ranks are processes of one machine.
//
// Each rank listens on a Unix socket in a directory that all of them know, and
// opens a connection to whom it sends to: nothing to set up, no ports, no MPI.
// For examples, tools and small jobs; between machines use MPI or transport of
// one's own.
//
// A rank that has not started yet is waited for: what is sent to it is kept. A
// rank that was there and is gone is dead: what is sent to it vanishes. Only
// processes of the same user are listened to.
//
// Thread: the owner's. Memory: each message under way is held once.

#ifndef HOLDFAST_CKPT_GROUP_LOCAL_GROUP_H_
#define HOLDFAST_CKPT_GROUP_LOCAL_GROUP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

// `dir` is an existing directory of this job alone; the socket is removed again
// when the Group is destroyed. Does not wait for the other ranks.
//
// kInvalidArgument: a rank that is none of `size`, or a path that is too long
// for a socket (107 bytes). Else as the system says.
absl::StatusOr<std::unique_ptr<Group>> OpenLocalGroup(const std::string& dir,
                                                      int rank, int size);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_LOCAL_GROUP_H_
