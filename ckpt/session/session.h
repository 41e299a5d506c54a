// ckpt/session/session.h: what a polled session is, and what it is driven with.
//
// A session (a save, a load, a claim, a sweep, a retention) is a state machine
// of one rank. It never blocks, starts no thread and reads no clock but the one
// it was given. Its host, the checkpoint thread (ckpt/checkpointer.cc) or the
// simulator (tests/support/sim_world.h), polls the group and the storage, hands
// each message and each completion to the session it belongs to, and calls
// Poll() in between until done().
//
// Completions find their session by the tag: a session uses only tags and files
// of its own space. Messages find it by phase and attempt; what nobody takes is
// dropped by the host.

#ifndef HOLDFAST_CKPT_SESSION_SESSION_H_
#define HOLDFAST_CKPT_SESSION_SESSION_H_

#include <cstddef>
#include <cstdint>

#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// Borrowed; all of it outlives the session.
struct SessionEnv {
  Storage* storage = nullptr;
  Group* group = nullptr;
  Clock* clock = nullptr;
  // Unique among the sessions that live at the same time.
  uint16_t space = 0;
  // Calls on the storage that this session may leave unanswered at once. The
  // sessions of one storage share its queue_depth().
  size_t ops_max = 1;

  OpTag Tag(uint64_t number) const {
    return OpTag{uint64_t{space} << 48 | number};
  }
  FileId File(uint16_t number) const {
    return FileId{uint32_t{space} << 16 | number};
  }
};

// The two halves of a tag made by SessionEnv::Tag.
constexpr uint16_t SpaceOf(OpTag tag) {
  return static_cast<uint16_t>(static_cast<uint64_t>(tag) >> 48);
}
constexpr uint64_t NumberOf(OpTag tag) {
  return static_cast<uint64_t>(tag) & ((uint64_t{1} << 48) - 1);
}

class Session {
 public:
  virtual ~Session() = default;

  // The answer to a call that this session made.
  virtual void OnCompletion(const Completion& completion) = 0;

  // True when the message was this session's; otherwise the host offers it to
  // the next one.
  virtual bool OnMessage(const Message& message) = 0;

  // Does what can be done now and returns; cheap when nothing can. Deadlines
  // are looked at here.
  virtual void Poll() = 0;

  // No call on the storage is unanswered and nothing more will be sent: the
  // session may be destroyed.
  virtual bool done() const = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SESSION_H_
