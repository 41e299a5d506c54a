// tools/holdfast/train_command.cc: one rank of a job, as a process.

#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "tools/holdfast/child_process.h"
#include "tools/holdfast/commands.h"
#include "tools/holdfast/rank_process.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/failure_report.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/fault/signals.h"
#include "trainer/fault/watchdog.h"
#include "trainer/parallel/job.h"
#include "trainer/run_records.h"
#include "trainer/trainer.h"

namespace holdfast::tools {
namespace {

// Longer than rank 0 may take to close its checkpointer, retention included
// (CheckpointerOptions::close_timeout_ms, two minutes), while the others are
// here already.
constexpr absl::Duration kFinalizeTimeout = absl::Minutes(4);

void SayOutcome(const trainer::TrainOutcome& outcome, int rank) {
  const bool good = outcome.exit_code == trainer::kExitFinished ||
                    outcome.exit_code == trainer::kExitSavedRestart;
  if (good) {
    if (rank == 0) HF_LOG_INFO("%s", outcome.message);
    return;
  }
  if (outcome.said_by_rank_0) return;
  // The log puts "rank N: " before what other ranks say.
  HF_LOG_ERROR("exit code %d: %s", outcome.exit_code, outcome.message);
}

// What the launcher reads to name the rank that failed first. In the watch
// thread, just before the end: a report that cannot be written changes nothing.
void LeaveReport(const std::string& run_dir, uint32_t incarnation,
                 const trainer::FailureReport& report) {
  trainer::WriteFailureReport(trainer::IncarnationDir(run_dir, incarnation),
                              report)
      .IgnoreError();
  trainer::WriteStatusFile(run_dir, "failed", trainer::kUnknownStep,
                           incarnation, report.exit_code, report.message)
      .IgnoreError();
}

// As the system has it, for env.json.
std::string OwnCommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(std::move(word));
  }
  return ShellCommand(words);
}

// The plan for this many ranks, from rank 0; its code from all of them.
int DryRun(const TrainOptions& options, trainer::Job& job,
           trainer::Heartbeat& heartbeat) {
  const trainer::Heartbeat::Scope scope(&heartbeat, "planning",
                                        kFinalizeTimeout);
  int64_t code = trainer::kExitFinished;
  if (job.rank() == 0) {
    code = RunPlan(
        {.config = options.config, .sets = options.sets, .world = job.size()});
  }
  absl::Status status = job.world().AllReduceMax({&code, 1});
  if (status.ok()) status = job.Finalize();
  if (status.ok()) return static_cast<int>(code);
  HF_LOG_ERROR("leaving the job: %s", std::string(status.message()));
  return trainer::ExitCodeOf(status);
}

}  // namespace

int RunTrain(const TrainOptions& options) {
  trainer::InstallSignalHandlers();
  trainer::TrainOptions train;
  train.config_path = options.config;
  train.sets = options.sets;
  train.run_dir = options.run;
  train.resume = options.resume;
  train.init_from = options.init_from;
  train.init_weights_only = options.init_only == "weights";
  train.accept_change = options.accept_changes;

  trainer::Heartbeat heartbeat;
  absl::StatusOr<std::unique_ptr<trainer::Job>> job = JoinJob(heartbeat);
  if (!job.ok()) {
    HF_LOG_ERROR("joining the job: %s", std::string(job.status().message()));
    return trainer::ExitCodeOf(job.status());
  }
  const int rank = (*job)->rank();
  InitRankLog(rank);
  std::atomic<uint32_t> incarnation = 0;
  trainer::WatchdogOptions watch = WatchOf(**job);
  watch.on_expiry = [&](const trainer::FailureReport& report) {
    if (incarnation == 0) return;
    LeaveReport(options.run, incarnation, report);
  };
  const auto watchdog = trainer::Watchdog::Start(heartbeat, std::move(watch));
  if (!watchdog.ok()) {
    HF_LOG_ERROR("%s", std::string(watchdog.status().message()));
    (*job)->Abort(trainer::ExitCodeOf(watchdog.status()));
  }

  if (options.dry_run) return DryRun(options, **job, heartbeat);

  trainer::TrainEnv env;
  env.world = &(*job)->world();
  env.clock = &ckpt::RealClock();
  env.heartbeat = &heartbeat;
  env.host = (*job)->HostOf(rank);
  env.first_on_host = (*job)->local_rank() == 0;
  env.ranks_on_host = (*job)->local_size();
  env.local_rank = (*job)->local_rank();
  env.processors_on_host = (*job)->processors();
  env.on_claimed = [&](uint32_t claimed) { incarnation = claimed; };
  env.command = OwnCommandLine();
  absl::StatusOr<std::unique_ptr<ckpt::Group>> group = [&] {
    const trainer::Heartbeat::Scope scope(
        &heartbeat, "opening the checkpoint group", kJoinTimeout);
    return (*job)->OpenCheckpointGroup();
  }();
  if (!group.ok()) {
    HF_LOG_ERROR("opening the checkpoint group: %s",
                 std::string(group.status().message()));
    (*job)->Abort(trainer::ExitCodeOf(group.status()));
  }
  env.checkpoint_group = *std::move(group);

  const trainer::TrainOutcome outcome = Train(train, std::move(env));
  SayOutcome(outcome, rank);
  ckpt::FlushLog();
  if (outcome.peers_may_wait) (*job)->Abort(outcome.exit_code);
  const trainer::Heartbeat::Scope scope(&heartbeat, "leaving the job",
                                        kFinalizeTimeout);
  const absl::Status finalized = (*job)->Finalize();
  if (!finalized.ok()) {
    HF_LOG_ERROR("leaving the job: %s", std::string(finalized.message()));
    return outcome.exit_code != 0 ? outcome.exit_code
                                  : trainer::ExitCodeOf(finalized);
  }
  return outcome.exit_code;
}

}  // namespace holdfast::tools
