// tests/e2e/launch_probe.cc: a rank that does what the test of `holdfast
// launch` asks for. It stands on the trainer's own job, signals and watchdog.
//
//   launch_probe finish              all ranks end with 0
//   launch_probe exit RANK CODE      RANK ends with CODE, the others wait for
//   it launch_probe die RANK            RANK kills itself with SIGKILL
//   launch_probe hang RANK --run DIR RANK stops; the others' watchdogs speak
//   launch_probe loop                until a signal asks to leave, then 75;
//                                    "saved" for each SIGUSR1
//   launch_probe wait-for-signals    never reaches the end of its step
//   launch_probe stubborn            ignores SIGTERM and SIGINT

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "ckpt/base/status_macros.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/failure_report.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/fault/signals.h"
#include "trainer/fault/watchdog.h"
#include "trainer/parallel/job.h"

namespace holdfast::trainer {
namespace {

// Steps until a signal asks to leave; 75.
absl::StatusOr<int> Loop(Collectives& world) {
  if (world.rank() == 0) {
    std::printf("looping\n");
    std::fflush(stdout);
  }
  while (true) {
    int64_t action = static_cast<int64_t>(RequestedAction());
    HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<int64_t>(&action, 1)));
    if (action == static_cast<int64_t>(SignalAction::kSaveAndLeave)) {
      return kExitSavedRestart;
    }
    if (action == static_cast<int64_t>(SignalAction::kSave)) {
      // Long enough for the signal to have reached every rank.
      usleep(200'000);
      ClearSaveRequest();
      HF_RETURN_IF_ERROR(world.Barrier());
      if (world.rank() == 0) {
        std::printf("saved\n");
        std::fflush(stdout);
      }
    }
    usleep(2'000);
  }
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int rank_meant = argc > 2 ? std::atoi(argv[2]) : 0;
  InstallSignalHandlers();
  Heartbeat heartbeat;
  auto opened = OpenJob(&heartbeat);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return ExitCodeOf(opened.status());
  }
  Job& job = **opened;
  WatchdogOptions options;
  options.rank = job.rank();
  options.host = job.HostOf(job.rank());
  options.host_of = [&](int rank) { return job.HostOf(rank); };
  if (mode == "hang" && argc > 4) {
    options.on_expiry = [dir = std::string(argv[4]) + "/incarnations/001"](
                            const FailureReport& report) {
      WriteFailureReport(dir, report).IgnoreError();
    };
  }
  const auto watchdog = Watchdog::Start(heartbeat, options);
  if (!watchdog.ok()) return ExitCodeOf(watchdog.status());
  if (!job.world().Barrier().ok()) return kExitBug;

  int code = kExitFinished;
  if (mode == "exit" && job.rank() == rank_meant) {
    _exit(argc > 3 ? std::atoi(argv[3]) : 1);
  } else if (mode == "die" && job.rank() == rank_meant) {
    raise(SIGKILL);
  } else if (mode == "hang" && job.rank() == rank_meant) {
    raise(SIGSTOP);
  } else if (mode == "loop") {
    const auto looped = Loop(job.world());
    if (!looped.ok()) return kExitBug;
    code = *looped;
  } else if (mode == "stubborn" || mode == "wait-for-signals") {
    if (mode == "stubborn") {
      signal(SIGTERM, SIG_IGN);
      signal(SIGINT, SIG_IGN);
    }
    if (job.rank() == 0) {
      std::printf("looping\n");
      std::fflush(stdout);
    }
    while (true) pause();
  }
  if (mode == "exit" || mode == "die" || mode == "hang") {
    const Heartbeat::Scope step(
        &heartbeat, "step 1",
        mode == "hang" ? absl::Seconds(1) : absl::Minutes(10));
    if (!job.world().Barrier().ok()) return kExitBug;
  }
  return job.Finalize().ok() ? code : kExitIo;
}

}  // namespace
}  // namespace holdfast::trainer

int main(int argc, char** argv) { return holdfast::trainer::Main(argc, argv); }
