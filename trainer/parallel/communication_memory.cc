// trainer/parallel/communication_memory.cc: peers here and there, and channels.

#include "trainer/parallel/communication_memory.h"

#include <algorithm>
#include <utility>

#include "trainer/parallel/wire_collectives.h"

namespace holdfast::trainer {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// A FIFO of each protocol: 4 MiB; 120 x 640 x 8 x 8; 8 x 512 x 8 x 16 bytes.
constexpr int64_t kFifoBytes = 4 * kMiB + 4'915'200 + 524'288;
// To a peer on the host: a receiver's FIFOs and a sender's control, each in
// whole 2 MiB, and what makes up the rest of what was measured.
constexpr int64_t kLocalChannelBytes =
    (kFifoBytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB) + 2 * kMiB + 2 * kMiB;
// Over the network messages share a pool for each direction, of 16 pieces of
// 128 KiB a channel; a ring has FIFOs of its own, in and out.
constexpr int64_t kPoolChannelBytes = 2 * 16 * 128 * 1024;
constexpr int64_t kRemoteRingChannelBytes = 2 * kFifoBytes;
// What a communicator has whatever it does: a guess.
constexpr int64_t kCommunicatorBytes = 16 * kMiB;

struct Peers {
  int64_t local = 0, remote = 0;
  bool any() const { return local + remote > 0; }
};

int HostOf(ckpt::Rank rank, int ranks_per_host) {
  return static_cast<int>(rank) / ranks_per_host;
}

int64_t MessageBytes(const Peers& peers, int64_t channels) {
  return channels * (peers.local * kLocalChannelBytes +
                     (peers.remote > 0 ? kPoolChannelBytes : 0));
}

int64_t RingBytes(const Peers& peers, int64_t channels) {
  return channels *
         (peers.remote > 0 ? kRemoteRingChannelBytes : kLocalChannelBytes);
}

}  // namespace

CommunicationMemory PlanNcclMemory(const ckpt::Mesh& mesh, ckpt::Rank rank,
                                   int ranks_per_host) {
  const ckpt::Coordinates at = ckpt::CoordinatesOf(mesh, rank);
  const int host = HostOf(rank, ranks_per_host);
  // The others of an axis whose coordinate is `own` of `size`.
  const auto peers_of = [&](int ckpt::Coordinates::*axis, int first, int last,
                            int size) {
    Peers peers;
    for (int i = std::max(first, 0); i <= std::min(last, size - 1); ++i) {
      ckpt::Coordinates other = at;
      other.*axis = i;
      if (other == at) continue;
      const bool here =
          HostOf(ckpt::RankAt(mesh, other), ranks_per_host) == host;
      (here ? peers.local : peers.remote) += 1;
    }
    return peers;
  };
  using C = ckpt::Coordinates;
  const Peers tp = peers_of(&C::tp, 0, mesh.tp, mesh.tp);
  const Peers dp = peers_of(&C::dp, 0, mesh.dp, mesh.dp);
  const Peers pp = peers_of(&C::pp, 0, mesh.pp, mesh.pp);
  const Peers neighbours = peers_of(&C::pp, at.pp - 1, at.pp + 1, mesh.pp);

  CommunicationMemory memory;
  if (tp.any()) {
    memory.scratch += static_cast<int64_t>(kWireScratchBytes);
    memory.library += kCommunicatorBytes + MessageBytes(tp, kNcclGroupCtas);
  }
  if (dp.any()) {
    // Gradients are messages, weights broadcasts along a ring.
    memory.scratch += static_cast<int64_t>(kLittleScratchBytes);
    memory.library += kCommunicatorBytes + MessageBytes(dp, kNcclGroupCtas) +
                      RingBytes(dp, kNcclGroupCtas);
  }
  if (pp.any()) {
    // The group carries a tied table between the ends, if anything: one peer.
    memory.scratch += static_cast<int64_t>(kLittleScratchBytes);
    const bool end = at.pp == 0 || at.pp == mesh.pp - 1;
    const Peers other_end = {.local = end && pp.remote == 0,
                             .remote = end && pp.remote > 0};
    memory.library +=
        kCommunicatorBytes + MessageBytes(other_end, kNcclGroupCtas);
    // Two lanes for each neighbour.
    for (const auto& [count, one] :
         {std::pair{neighbours.local, Peers{.local = 1}},
          std::pair{neighbours.remote, Peers{.remote = 1}}}) {
      memory.library +=
          2 * count * (kCommunicatorBytes + MessageBytes(one, kNcclLaneCtas));
    }
  }
  return memory;
}

}  // namespace holdfast::trainer
