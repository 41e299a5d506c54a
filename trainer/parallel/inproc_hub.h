// trainer/parallel/inproc_hub.h: matches the messages of ranks that are
// threads. Private to inproc_collectives.cc.
//
// Whoever comes second to a message, sender or receiver, copies the bytes,
// without the lock. Until then both buffers belong to the hub, which is why a
// request that is being copied is always waited for, even after an abort.

#ifndef HOLDFAST_TRAINER_PARALLEL_INPROC_HUB_H_
#define HOLDFAST_TRAINER_PARALLEL_INPROC_HUB_H_

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace holdfast::trainer {

// One communicator: who is in it, in ranks of the world.
struct InprocMembers {
  int id = 0;
  std::string name;
  std::vector<int> world_ranks;
};

class InprocHub {
 public:
  // Ranks inside are the communicator's.
  struct Key {
    int communicator = 0;
    int from = 0;
    int to = 0;
    int channel = 0;
    int tag = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  enum class State { kPosted, kCopying, kDone };

  struct Request {
    bool is_send = false;
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    size_t size = 0;
    Key key;
    int owner = 0;  // World rank.
    int peer = 0;   // World rank.
    State state = State::kPosted;
    absl::Status status;
  };

  explicit InprocHub(int ranks);

  int size() const { return static_cast<int>(waiters_.size()); }

  // Offers a request for matching; copies when its partner is there. `request`
  // stays where it is until Finish or Withdraw.
  void Post(Request* request);

  // Blocks until the request is over. `operation` is for the report of a
  // deadlock.
  absl::Status Finish(Request* request, const std::string& operation);

  // For a request that nobody will wait for. Afterwards it may go, and so may
  // its memory.
  void Withdraw(Request* request);

  void Abort(const absl::Status& why);

  // The communicator of the members, made by whoever comes first.
  std::shared_ptr<const InprocMembers> FindOrCreate(
      int parent, int split, int color, const std::string& name,
      std::vector<int> world_ranks);
  std::shared_ptr<const InprocMembers> World() const { return world_; }

  // Member `rank` makes no more calls on this communicator.
  void Leave(const InprocMembers& members, int rank);

 private:
  struct Waiter {
    std::condition_variable wake;
    Request* request = nullptr;  // What it is blocked on.
    std::string operation;
  };

  // All with `mutex_` held.
  absl::Status WhyHopeless(const Request& request) const;
  void Remove(Request* request);
  void Complete(Request* request);
  void AbortLocked(const absl::Status& why);
  void FailIfAllWait();

  std::mutex mutex_;
  std::vector<std::unique_ptr<Waiter>> waiters_;  // By world rank.
  std::map<Key, std::deque<Request*>> posted_;    // All sends or all receives.
  std::shared_ptr<const InprocMembers> world_;
  std::map<std::tuple<int, int, int>, std::shared_ptr<const InprocMembers>>
      splits_;
  std::set<std::pair<int, int>> left_;  // (communicator, rank in it)
  int communicators_ = 1;
  int blocked_ = 0;
  int active_;  // Ranks that have not left the world.
  absl::Status abort_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_INPROC_HUB_H_
