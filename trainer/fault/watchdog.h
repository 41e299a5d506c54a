// trainer/fault/watchdog.h: ends a rank whose step thread is stuck.
//
// MPI collectives cannot be given up, so a thread of its own reads the
// heartbeat, and when its deadline has passed says rank, host, operation and
// who is waited for, lets the owner write a report, and ends the process with
// 74. It owns nothing and takes no lock of the step thread.
//
//   Heartbeat heartbeat;
//   HF_ASSIGN_OR_RETURN(const auto watchdog,
//                       Watchdog::Start(heartbeat, {.rank = 3, ...}));
//   const Heartbeat::Scope scope(&heartbeat, "step 120", absl::Minutes(10));
//
// Thread: made and destroyed by the step thread. Cost: a wake-up every `poll`.

#ifndef HOLDFAST_TRAINER_FAULT_WATCHDOG_H_
#define HOLDFAST_TRAINER_FAULT_WATCHDOG_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/failure_report.h"
#include "trainer/fault/heartbeat.h"

namespace holdfast::trainer {

struct WatchdogOptions {
  int rank = 0;
  std::string host;
  absl::Duration poll = absl::Milliseconds(250);
  // Where another rank runs; may be empty. Called in the watch thread.
  std::function<std::string(int rank)> host_of;
  // Called in the watch thread, before the end; may be empty.
  std::function<void(const FailureReport& report)> on_expiry;
  int exit_code = kExitIo;
  // Other ranks get this long to report as well: a launcher kills all of them
  // when the first one ends.
  absl::Duration linger = absl::Milliseconds(500);
  // Ends the process; by default FlushLog and _exit. Tests give another.
  std::function<void(int exit_code)> end_process;
};

class Watchdog {
 public:
  // `heartbeat` outlives it. kResourceExhausted: the system refuses a thread,
  // and the rank must not begin what nobody ends when it is stuck.
  static absl::StatusOr<std::unique_ptr<Watchdog>> Start(
      const Heartbeat& heartbeat, WatchdogOptions options);
  // Joins the watch thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  Watchdog(const Heartbeat& heartbeat, WatchdogOptions options);
  void Run();
  void Expire(const Heartbeat::Reading& reading);

  const Heartbeat& heartbeat_;
  const WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FAULT_WATCHDOG_H_
