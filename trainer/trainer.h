// trainer/trainer.h: one rank's whole run, from configuration to exit code.
//
// The loop itself is trainer.cc and reads in one sitting; startup.cc has all
// that happens before the first step. Every rank of a job calls Train with the
// same options. In a process of its own this is `holdfast train`; tests run
// several ranks as threads of one process.

#ifndef HOLDFAST_TRAINER_TRAINER_H_
#define HOLDFAST_TRAINER_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"
#include "kernels/device.h"
#include "trainer/device_copier.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/fault/signals.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

struct TrainOptions {
  std::string config_path;
  std::vector<std::string> sets;  // KEY=VALUE
  std::string run_dir;
  std::string resume = "auto";  // auto, never, required, or a step
  std::string init_from;        // RUN, RUN@STEP or a checkpoint directory
  bool init_weights_only = false;
  std::vector<std::string> accept_change;
  // Faults to inject into this rank's storage (ckpt/storage/fault_spec.h); ""
  // leaves it to the environment, HOLDFAST_FAULT.
  std::string fault_spec;
};

// What a rank is given by whoever started it.
struct TrainEnv {
  Collectives* world = nullptr;
  // Moved into the checkpointer: its own communicator, used by its own thread.
  std::unique_ptr<ckpt::Group> checkpoint_group;
  ckpt::Clock* clock = nullptr;
  // Where the step thread says what it is doing; the watchdog reads it.
  Heartbeat* heartbeat = nullptr;
  std::string host;
  bool first_on_host = true;  // the lowest rank of its host
  int ranks_on_host = 1;
  int local_rank = 0;          // of them, from 0
  int processors_on_host = 0;  // given to those ranks; 0: not known
  std::string command;         // as typed, for env.json
  // Called once the run is claimed, so that whoever watches this rank knows
  // where its reports go; may be empty.
  std::function<void(uint32_t incarnation)> on_claimed;
  // Rank logs go to RUN/incarnations/NNN/logs; off for ranks that are threads.
  bool log_to_files = true;
  // Times the disk and the matrix product at the start, about a second. Without
  // it `mfu` and `raw_share` are 0.
  bool measure_speeds = true;
  // For tests: where the rank computes, whatever the configuration says; null:
  // as that says. Called once, by the step thread.
  std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>()> make_device;
  DeviceCopier::Canary copier_canary = DeviceCopier::Canary::kNone;
  // What signals ask of this rank. Called by the step thread.
  std::function<SignalAction()> requested_action = RequestedAction;
  std::function<void()> clear_save_request = ClearSaveRequest;
};

struct TrainOutcome {
  int exit_code = 0;
  // Other ranks may still be waiting for this one: end the job, do not
  // finalize.
  bool peers_may_wait = false;
  std::string message;
  bool said_by_rank_0 = false;  // in the same words: no need to repeat them
  int64_t step = 0;             // the last finished step
  uint32_t incarnation = 0;     // 0: the run was not claimed
};

// Runs to the last step, to a signal, or to an error. Never throws, never
// exits. The outcome is the same on every rank, unless a rank failed alone.
TrainOutcome Train(const TrainOptions& options, TrainEnv env);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_TRAINER_H_
