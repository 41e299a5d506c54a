// tools/holdfast/rank_process.h: what the commands that run as one rank of a
// job (train, links) do before they are one.

#ifndef HOLDFAST_TOOLS_HOLDFAST_RANK_PROCESS_H_
#define HOLDFAST_TOOLS_HOLDFAST_RANK_PROCESS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/fault/watchdog.h"
#include "trainer/parallel/job.h"

namespace holdfast::tools {

// Ranks of a large job start minutes apart.
inline constexpr absl::Duration kJoinTimeout = absl::Minutes(10);

// OpenJob under a watchdog of its own: the job's is told by the job who waits
// where (WatchOf).
absl::StatusOr<std::unique_ptr<trainer::Job>> JoinJob(
    trainer::Heartbeat& heartbeat);

// A watchdog's options for this rank of `job`, which outlives the watchdog.
trainer::WatchdogOptions WatchOf(const trainer::Job& job);

// Rank 0 speaks for all; the others are heard when something is wrong.
void InitRankLog(int rank);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_RANK_PROCESS_H_
