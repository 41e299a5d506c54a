// tests/support/sim_group.h: the Group seam of the simulator.
//
// A SimNetwork owns every message under way. Each takes a delay chosen by the
// seed, some are late by much more; among the messages that are due, the seed
// chooses whose is delivered next. Messages of one pair keep their order. A
// dead rank receives nothing and sends nothing more; of what it had sent, a
// prefix chosen by the seed still arrives.
//
// Time is the simulated clock's: nothing is due before the clock says so, and
// NextArrival tells a driver how far it may jump.
//
// Thread: everything in one thread, the simulator's loop.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_GROUP_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_GROUP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"

namespace holdfast::tests {

struct SimNetworkOptions {
  uint64_t seed = 1;
  absl::Duration delay_min = absl::Microseconds(10);
  absl::Duration delay_max = absl::Milliseconds(2);
  // This share of the messages takes `late_delay` more.
  double late_share = 0;
  absl::Duration late_delay = absl::Seconds(300);
  int ranks_per_host = 2;  // Hosts are called "sim0", "sim1", ...
};

class SimNetwork {
 public:
  // `clock` outlives the network; only Monotonic() is read.
  SimNetwork(int ranks, ckpt::Clock& clock, const SimNetworkOptions& options);
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // The Group of a rank, once. The network outlives it.
  std::unique_ptr<ckpt::Group> Open(ckpt::Rank rank);

  void Kill(ckpt::Rank rank);
  bool alive(ckpt::Rank rank) const {
    return ranks_[static_cast<size_t>(ckpt::Index(rank))].alive;
  }

  // From now on, messages from `from` to `to` get lost (Heal: no longer).
  void Cut(ckpt::Rank from, ckpt::Rank to);
  void Heal(ckpt::Rank from, ckpt::Rank to);

  // When the earliest message under way is due (perhaps in the past, when it is
  // there to be polled); nullopt when there is none.
  std::optional<absl::Duration> NextArrival() const;

  int64_t delivered() const { return delivered_; }
  int64_t lost() const { return lost_; }
  int64_t late() const { return late_; }

 private:
  friend class SimGroup;

  struct Parcel {
    ckpt::Message message;
    absl::Duration due;
  };
  struct RankState {
    bool alive = true;
    std::vector<std::deque<Parcel>> inbox;  // By sender.
  };

  void Send(int from, int to, const ckpt::MessageTag& tag,
            std::span<const std::byte> body);
  std::optional<ckpt::Message> Poll(int rank);
  uint64_t Random();

  ckpt::Clock& clock_;
  const SimNetworkOptions options_;
  std::vector<RankState> ranks_;
  std::set<std::pair<int, int>> cuts_;
  uint64_t draws_ = 0;
  int64_t delivered_ = 0;
  int64_t lost_ = 0;
  int64_t late_ = 0;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_GROUP_H_
