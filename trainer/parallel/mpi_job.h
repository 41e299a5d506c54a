// trainer/parallel/mpi_job.h: the Job that MPI holds together. Called by
// OpenJob only.

#ifndef HOLDFAST_TRAINER_PARALLEL_MPI_JOB_H_
#define HOLDFAST_TRAINER_PARALLEL_MPI_JOB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "trainer/parallel/job.h"

namespace holdfast::trainer {

// Initialises MPI; once a process.
absl::StatusOr<std::unique_ptr<Job>> OpenMpiJob(const LauncherEnv& env,
                                                Heartbeat* heartbeat);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_MPI_JOB_H_
