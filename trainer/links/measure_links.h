// trainer/links/measure_links.h: bandwidth and latency of the links that a
// layout would use, before it does.
//
// For each axis of the mesh with more than one member, all its groups at the
// same time, as in training:
//
//   all-reduce       tp, dp     a few bytes, then sum_bytes
//   send, receive    tp, dp     every pair of the group once, in rounds
//                    pp         neighbour stages
//
// A pair exchanges a message and its answer; half of that time is one way. A
// round has every rank busy at most once, so pairs share switches and the
// host's memory as they would in training, but no end.
//
// Thread: the step thread; collective over the mesh. Each round has a deadline
// and a name under the watchdog.

#ifndef HOLDFAST_TRAINER_LINKS_MEASURE_LINKS_H_
#define HOLDFAST_TRAINER_LINKS_MEASURE_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/links/link_ops.h"
#include "trainer/links/link_report.h"
#include "trainer/parallel/mesh_collectives.h"

namespace holdfast::trainer {

struct LinkTestOptions {
  int64_t message_bytes = int64_t{16} << 20;  // Of a large message.
  int64_t sum_bytes = int64_t{64} << 20;      // Of a large all-reduce.
  int repeats = 5;           // Large ones, after one that does not count.
  int latency_repeats = 50;  // Small ones, after five.
  absl::Duration round_timeout = absl::Minutes(2);
  ckpt::Clock* clock = &ckpt::RealClock();
  Heartbeat* heartbeat = nullptr;  // May be null.
  // The operations of one group; host memory by default.
  std::function<absl::StatusOr<std::unique_ptr<LinkOps>>(
      Collectives& group, LinkAxis axis, int64_t bytes_max)>
      open_ops;
  // On rank 0: so many of so many rounds are over. May be null.
  std::function<void(int64_t done, int64_t of)> progress;
};

struct LinkMeasurements {
  std::vector<PairRecord> pairs;
  std::vector<GroupRecord> groups;
};

// All of the job's, on every rank.
absl::StatusOr<LinkMeasurements> MeasureLinks(MeshCollectives& mesh,
                                              const LinkTestOptions& options);

// Ranks of the world in the group of `record`, by their place in it.
std::vector<int> RanksOfGroup(const ckpt::Mesh& mesh,
                              const GroupRecord& record);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_LINKS_MEASURE_LINKS_H_
