// tests/support/start_world.h: a job that starts, all ranks in one loop.
//
// Each rank has an OwnerSession, a SimStorage on a shared SimDisk and a Group
// on a SimNetwork of its own job. Several jobs may share one disk: poll them in
// any order.

#ifndef HOLDFAST_TESTS_SUPPORT_START_WORLD_H_
#define HOLDFAST_TESTS_SUPPORT_START_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/layout/holding.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/storage/storage.h"
#include "tests/support/saved_run.h"
#include "tests/support/sim_clock.h"
#include "tests/support/sim_disk.h"
#include "tests/support/sim_group.h"
#include "tests/support/sim_storage.h"

namespace holdfast::tests {

class StartWorld {
 public:
  struct Options {
    uint64_t seed = 1;
    SimNetworkOptions network;  // its seed is `seed`
    int first_process = 0;      // of this job on the disk
    ckpt::OwnerOptions owner;
    // Changes a rank's options.
    std::function<void(int rank, ckpt::OwnerOptions&)> tweak;
    // Puts another storage in front of a rank's, or nothing (null).
    std::function<std::unique_ptr<ckpt::Storage>(int rank, ckpt::Storage&)>
        wrap;
    // A second storage for init_env, polled as well; the same for all ranks.
    std::function<std::unique_ptr<ckpt::Storage>(int rank)> init;
    std::string init_dir;
  };

  // `disk` and `layout` outlive it.
  StartWorld(SimDisk& disk, const ckpt::JobLayout& layout, Options options);

  // One round over all ranks, in an order that the seed draws. False when every
  // rank is done or dead.
  bool Poll();
  // Until then; CHECK-fails when that takes a simulated day.
  void Run();

  int world() const { return static_cast<int>(ranks_.size()); }
  bool done(int rank) const { return ranks_[rank]->session->done(); }
  bool dead(int rank) const { return ranks_[rank]->storage->dead(); }
  const ckpt::OwnerResult& result(int rank) const {
    return ranks_[rank]->session->result();
  }
  ckpt::LoadProgress progress(int rank) const {
    return ranks_[rank]->session->progress();
  }
  SimNetwork& network() { return network_; }
  SimClock& clock() { return clock_; }
  ckpt::Storage& storage(int rank) { return *ranks_[rank]->storage; }

  // "" when every rank is done, OK, agrees with rank 0 on what it loaded, and
  // holds the values of `seed`; else what is wrong.
  std::string LoadedBy(uint64_t seed) const;

 private:
  struct RankState {
    std::unique_ptr<SimStorage> storage;
    std::unique_ptr<ckpt::Storage> wrapped;
    std::unique_ptr<ckpt::Storage> init;
    std::unique_ptr<ckpt::Group> group;
    ckpt::Holding holding;
    std::unique_ptr<JobMemory> memory;
    std::unique_ptr<ckpt::LoadTarget> target;
    std::unique_ptr<ckpt::OwnerSession> session;
  };

  // How many answers there were.
  static size_t Deliver(ckpt::Storage& storage, ckpt::OwnerSession& session);

  const ckpt::JobLayout& layout_;
  SimClock clock_;
  SimNetwork network_;
  SimRandom random_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  int idle_ = 0;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_START_WORLD_H_
