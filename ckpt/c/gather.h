// ckpt/c/gather.h: everybody's bytes to everybody, before a group goes to the
// checkpoint thread. Private to ckpt/c.
//
//   rank -> 0          its bytes
//   0 -> all           the bytes of all, or why not; along a tree of four
//   child -> parent    it and its children have them
//
// The last message is there because a send is driven by polling: whoever has
// passed something on polls until it has arrived.
//
// Blocks, polling; thread: the group's owner.

#ifndef HOLDFAST_CKPT_C_GATHER_H_
#define HOLDFAST_CKPT_C_GATHER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

struct Gathered {
  std::vector<std::vector<std::byte>> bytes;  // by rank
  // The group that was given, and with it what has arrived for others
  // meanwhile.
  std::unique_ptr<Group> group;
};

// kDeadlineExceeded: rank 0 names those it has not heard of and tells the
// others; they name rank 0. kResourceExhausted: more than a message can hold.
absl::StatusOr<Gathered> GatherAll(std::unique_ptr<Group> group,
                                   std::span<const std::byte> mine,
                                   absl::Duration timeout, Clock& clock);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_GATHER_H_
