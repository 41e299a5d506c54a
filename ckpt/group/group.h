// ckpt/group/group.h: tagged messages between the ranks of a checkpoint.
//
// There is no collective here and nothing that blocks: a collective cannot be
// cancelled when a rank dies, a message that never comes can be given up on.
// Sessions send, poll, and hold their own deadlines.
//
// Messages between one pair of ranks arrive in the order they were sent, or
// never. A message to oneself arrives too. A message whose tag belongs to an
// attempt that is over is the receiver's to drop.
//
// Thread: one thread owns a Group and makes every call on it.

#ifndef HOLDFAST_CKPT_GROUP_GROUP_H_
#define HOLDFAST_CKPT_GROUP_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/types.h"

namespace holdfast::ckpt {

// What a message is about. `phase` is the sender's business (session/ has the
// list); incarnation and attempt let a receiver drop what is late.
struct MessageTag {
  uint32_t incarnation = 0;
  uint32_t attempt = 0;
  uint32_t phase = 0;
  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

struct Message {
  Rank from{};
  MessageTag tag;
  std::vector<std::byte> body;
};

// Longest body: a manifest of any size that readers take, and what goes with
// it. Longer ones are the sender's bug (CHECK).
inline constexpr size_t kMessageBytesMax = size_t{257} << 20;

class Group {
 public:
  virtual ~Group() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  // Where a rank runs, for error messages: "node17". Never empty.
  virtual std::string HostOf(Rank rank) const = 0;

  // Copies `body` and returns at once; there is no answer. Sending to a dead
  // rank is not an error: nobody will answer, and the deadline finds out.
  virtual void Send(Rank to, const MessageTag& tag,
                    std::span<const std::byte> body) = 0;

  // The next message that has arrived, from anyone. Never blocks. Also drives
  // sends that are under way: a rank that only sends must poll as well.
  virtual std::optional<Message> Poll() = 0;

  // Some message is on its way from or to here, and comes on with each Poll: a
  // caller that waits for it does better to poll than to sleep.
  virtual bool moving() const { return false; }
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_GROUP_H_
