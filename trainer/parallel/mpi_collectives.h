// trainer/parallel/mpi_collectives.h: Collectives over Open MPI.
//
// Only point-to-point messages and the making of communicators are MPI's; sums
// and everything else are MessageCollectives'. Requests are non-blocking and
// tested under the watchdog, never waited for inside MPI: a wait there cannot
// be given up, and it spins, while here ranks may outnumber cores.
//
// Thread: the step thread; the checkpoint thread uses MPI at the same time on
//     its own communicator, so MPI runs with MPI_THREAD_MULTIPLE.
// Limits: a message may be longer than 2 GiB (it travels in pieces of 1 GiB);
//     user tags go up to MPI_TAG_UB / 2 (2^30 - 1 in Open MPI).
// Errors: what MPI reports is kUnavailable with MPI's own words; unequal sizes
//     of the two sides are kInternal. A dead peer is not reported by Open MPI
//     4: the watchdog finds it, or the launcher ends the job.

#ifndef HOLDFAST_TRAINER_PARALLEL_MPI_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_MPI_COLLECTIVES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

// A communicator of all processes, duplicated from MPI_COMM_WORLD. Collective.
// MPI is up; the result is destroyed before MPI goes down. `heartbeat` may be
// null and outlives it.
absl::StatusOr<std::unique_ptr<Collectives>> OpenMpiWorld(Heartbeat* heartbeat);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_MPI_COLLECTIVES_H_
