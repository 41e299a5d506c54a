// tests/support/sim_world.h: jobs of several ranks on one simulated disk,
// driven from one loop in an order that the seed draws.
//
// Each rank is a simulated process: its storage on the shared SimDisk, its
// group on the job's SimNetwork, its memory, its fence, the very RankHost that
// the checkpoint thread drives, and an optimizer that walks through the state
// while a save is in flight. Time moves only when nobody can do anything.
//
//   SimWorld world({.seed = 7});
//   SimJob& job = world.StartJob(3);
//   ASSERT_OK(world.Claim(job));
//   ASSERT_OK(world.Save(job, 100));
//   world.disk().CutPowerAfter(12);
//   world.Save(job, 200).IgnoreError();
//   world.PowerCycle();
//   world.LoadAndCheck(3)  ->  the step that was found, every byte compared
//
// Thread: one.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_WORLD_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/session/rank_host.h"
#include "ckpt/session/save_host.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/snapshot/fence.h"
#include "tests/support/sim_clock.h"
#include "tests/support/sim_disk.h"
#include "tests/support/sim_group.h"
#include "tests/support/sim_layout.h"
#include "tests/support/sim_storage.h"

namespace holdfast::tests {

struct SimWorldOptions {
  uint64_t seed = 1;
  SimDiskOptions disk;  // its seed is taken from `seed`
  SimNetworkOptions network;
  ckpt::SaveHostOptions saves;
  uint32_t files_per_dir = 0;
  int files = 0;  // as CheckpointerOptions::files
  ckpt::FenceOptions fence;
  // The optimizer waits so long for a unit, then poisons the save.
  absl::Duration fence_wait = absl::Seconds(20);
  // How often the optimizer gets a turn: of 8 turns of a rank, so many.
  int optimizer_turns = 2;
  // Every rank but rank 0 is on a machine whose syncs take so long.
  absl::Duration slow_sync;
  bool canary_ignore_seal = false;
};

// One simulated process.
class SimRank {
 public:
  SimRank(const SimWorldOptions& options, SimDisk& disk, SimClock& clock,
          SimNetwork& network, const SimLayout* layout, ckpt::Rank rank,
          int process);

  // One turn; true when something was done.
  bool Turn(SimRandom& random);

  void Claim(ckpt::OwnerOptions options);
  // Now or some turns later the step thread has the state of `step` in memory,
  // begins to save it and goes on to step + 1; a rank that is still busy then
  // skips.
  void BeginSave(int64_t step, int turns_until);
  void Fill(int64_t step);
  std::string Compare(int64_t step) const;

  bool dead() const { return storage_.dead(); }
  int process() const { return process_; }
  SimStorage& storage() { return storage_; }
  ckpt::RankHost& host() { return *host_; }
  ckpt::Fence& fence() { return *fence_; }
  const std::optional<ckpt::OwnerResult>& owner() const { return owner_; }
  const std::optional<ckpt::SaveResult>& saved() const { return saved_; }
  // The step thread has begun the save and walked through the whole state.
  bool stepped() const { return !step_begins_ && walked_ == walk_.size(); }

 private:
  bool Walk();

  const SimWorldOptions& options_;
  SimClock& clock_;
  const SimLayout* const layout_;
  const int process_;
  SimStorage storage_;
  std::unique_ptr<ckpt::Group> group_;
  std::vector<ckpt::AlignedBuffer> memory_;
  std::vector<std::span<std::byte>> regions_;
  ckpt::Holding stored_;
  ckpt::Holding wanted_;
  ckpt::SavePlans plans_;
  std::unique_ptr<ckpt::Fence> fence_;
  ckpt::LoadTarget target_;
  std::unique_ptr<ckpt::RankHost> host_;

  std::optional<ckpt::OwnerResult> owner_;
  std::optional<ckpt::SaveResult> saved_;
  std::optional<int64_t> step_begins_;
  int turns_until_begin_ = 0;
  int64_t step_after_ = 0;
  std::vector<ckpt::Fragment> walk_;  // in the order of the optimizer
  size_t walked_ = 0;
  std::optional<absl::Duration> waiting_since_;
};

struct SimJob {
  SimLayout layout;
  std::unique_ptr<SimNetwork> network;
  std::vector<std::unique_ptr<SimRank>> ranks;  // null: dead
  // A job that is not run stands still, as a stopped process does.
  bool frozen = false;

  bool all_dead() const;
  bool any_dead() const;
};

class SimWorld {
 public:
  explicit SimWorld(const SimWorldOptions& options,
                    std::unique_ptr<SimDisk> disk = nullptr);

  SimDisk& disk() { return *disk_; }
  SimClock& clock() { return clock_; }
  // For those that will be started.
  SimWorldOptions& options() { return options_; }

  SimJob& StartJob(int ranks);

  // All ranks claim and load; done when every rank that lives has a result.
  // Rank 0's status, or that of the lowest rank that lives; kAborted when all
  // are dead.
  absl::Status Claim(SimJob& job, ckpt::OwnerOptions options = {});

  // All ranks save the state of `step` and train on to step + 1.
  absl::Status Save(SimJob& job, int64_t step);
  // Begins as Save does, and returns at once.
  void BeginSave(SimJob& job, int64_t step);

  // Until retention has nothing to do.
  void FinishRetention(SimJob& job);

  // Gives turns to all jobs until `done`, or until nobody has done anything for
  // an hour of simulated time (false).
  bool RunUntil(const std::function<bool()>& done);

  // Every process dies; so does what was volatile, if the power went.
  void KillAllJobs();
  void PowerCycle(uint64_t fate);

  // A new job claims the run and loads; every wanted byte is compared. The step
  // that was loaded, -1 for a fresh start.
  absl::StatusOr<int64_t> LoadAndCheck(int ranks);
  absl::StatusOr<int64_t> LoadAndCheck(SimJob& job);

 private:
  bool TurnOfAll();
  void BuryTheDead();
  absl::Status StatusOf(
      SimJob& job,
      const std::function<std::optional<absl::Status>(SimRank&)>& status);

  SimWorldOptions options_;
  SimClock clock_;
  std::unique_ptr<SimDisk> disk_;
  SimRandom random_;
  std::vector<std::unique_ptr<SimJob>> jobs_;
  int processes_ = 0;
  int64_t networks_ = 0;
  uint64_t nonces_ = 0;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_WORLD_H_
