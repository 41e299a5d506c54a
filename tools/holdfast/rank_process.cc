// tools/holdfast/rank_process.cc: joining a job, watched.

#include "tools/holdfast/rank_process.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::tools {

absl::StatusOr<std::unique_ptr<trainer::Job>> JoinJob(
    trainer::Heartbeat& heartbeat) {
  trainer::WatchdogOptions watch;
  const auto env = trainer::ReadLauncherEnv(
      [](const char* name) -> const char* { return std::getenv(name); });
  if (env.ok()) watch.rank = env->rank;
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) == 0) watch.host = host;
  HF_ASSIGN_OR_RETURN(const auto watchdog,
                      trainer::Watchdog::Start(heartbeat, std::move(watch)));
  const trainer::Heartbeat::Scope scope(&heartbeat, "joining the job",
                                        kJoinTimeout);
  return trainer::OpenJob(&heartbeat);
}

trainer::WatchdogOptions WatchOf(const trainer::Job& job) {
  trainer::WatchdogOptions watch;
  watch.rank = job.rank();
  watch.host = job.HostOf(job.rank());
  watch.host_of = [&job](int other) { return job.HostOf(other); };
  return watch;
}

void InitRankLog(int rank) {
  ckpt::InitLog(rank == 0 ? ckpt::LogLevel::kInfo : ckpt::LogLevel::kError, "",
                rank == 0 ? "" : absl::StrFormat("rank %d", rank))
      .IgnoreError();
}

}  // namespace holdfast::tools
