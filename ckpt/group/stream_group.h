// ckpt/group/stream_group.h: a Group over sockets: one stream of frames from
// each rank to each other one that it has something to say to.
//
// Where streams come from is the endpoints' matter: sockets of one machine
// (local_group.h) or TCP (tcp_group.h). The first bytes of a stream say who
// sends, and a secret that all ranks know; a stream without it is closed.
//
// A rank that is gone, or whose stream broke, is dead: what is sent to it
// vanishes, and there is no second stream to it. A message that may or may not
// have arrived is worse than none: the jobs above end, and go on from what is
// committed when they are started again.
//
// Thread: the owner's. Memory: each message under way is held once.

#ifndef HOLDFAST_CKPT_GROUP_STREAM_GROUP_H_
#define HOLDFAST_CKPT_GROUP_STREAM_GROUP_H_

#include <memory>
#include <string>

#include "ckpt/group/group.h"

namespace holdfast::ckpt {

class StreamEndpoints {
 public:
  virtual ~StreamEndpoints() = default;
  // A socket that does not block, on its way to that rank or there; the caller
  // closes it. -1: the rank is not there yet, and is asked for again.
  virtual int Connect(int to) = 0;
  // May whoever has connected be listened to?
  virtual bool Trusts(int fd) const = 0;
  virtual std::string HostOf(int rank) const = 0;
  // Where that rank listens, for messages.
  virtual std::string PlaceOf(int rank) const = 0;
  // Where this rank listens, for messages.
  virtual const std::string& place() const = 0;
};

// `listener` is a socket that listens and does not block; the Group's from now
// on. `secret` has at most kStreamSecretMax bytes.
inline constexpr size_t kStreamSecretMax = 256;
std::unique_ptr<Group> MakeStreamGroup(
    int rank, int size, std::string secret, int listener,
    std::unique_ptr<StreamEndpoints> endpoints);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_STREAM_GROUP_H_
