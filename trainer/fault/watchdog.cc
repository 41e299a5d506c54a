// trainer/fault/watchdog.cc: see the header.

#include "trainer/fault/watchdog.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

constexpr unsigned kLastResortSeconds = 10;

}  // namespace

Watchdog::Watchdog(const Heartbeat& heartbeat, WatchdogOptions options)
    : heartbeat_(heartbeat), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(
    const Heartbeat& heartbeat, WatchdogOptions options) {
  std::unique_ptr<Watchdog> watchdog(
      new Watchdog(heartbeat, std::move(options)));
  HF_ASSIGN_OR_RETURN(
      watchdog->thread_,
      ckpt::StartThread("the watchdog", [it = watchdog.get()] { it->Run(); }));
  return watchdog;
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    const Heartbeat::Reading reading = heartbeat_.Read();
    if (reading.has_deadline && reading.remaining < absl::ZeroDuration()) {
      lock.unlock();
      Expire(reading);
      return;
    }
    wake_.wait_for(lock, absl::ToChronoMilliseconds(options_.poll));
  }
}

void Watchdog::Expire(const Heartbeat::Reading& reading) {
  FailureReport report;
  report.rank = options_.rank;
  report.host = options_.host;
  report.operation = reading.operation;
  report.seconds = absl::ToDoubleSeconds(reading.running);
  report.waiting_for = reading.waiting_for;
  report.exit_code = options_.exit_code;
  report.time_unix_ms = absl::ToUnixMillis(ckpt::RealClock().WallTime());
  std::string waits;
  if (reading.waiting_for != Heartbeat::kNobody) {
    if (options_.host_of) {
      report.waiting_for_host = options_.host_of(reading.waiting_for);
    }
    waits = absl::StrFormat(", waiting for rank %d", reading.waiting_for);
    if (!report.waiting_for_host.empty()) {
      absl::StrAppend(&waits, " on ", report.waiting_for_host);
    }
  }
  report.message = absl::StrFormat(
      "rank %d on %s: '%s' has taken %.1f s%s, %.1f s beyond the deadline; "
      "ending the job with %d",
      report.rank, report.host, report.operation, report.seconds, waits,
      -absl::ToDoubleSeconds(reading.remaining), report.exit_code);
  // The report first: whoever fails first ends the job for all.
  if (options_.on_expiry) options_.on_expiry(report);
  // The step thread may be stuck inside the log itself, on a pipe that nobody
  // reads. Then SIGALRM ends the process instead.
  if (!options_.end_process) alarm(kLastResortSeconds);
  HF_LOG_ERROR("%s", report.message);
  ckpt::FlushLog();
  ckpt::RealClock().Sleep(options_.linger);
  if (options_.end_process) {
    options_.end_process(options_.exit_code);
    return;
  }
  _exit(options_.exit_code);
}

}  // namespace holdfast::trainer
