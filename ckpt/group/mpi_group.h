// ckpt/group/mpi_group.h: a Group over Open MPI.
//
// Its own duplicate of MPI_COMM_WORLD, so that checkpoint traffic cannot meet
// the training's. Nothing blocks: sends and receives are tracked and moved on
// by Poll, and a peer that is gone costs memory, not time.
//
// Thread: made by one thread while no other uses MPI, then owned by one thread
//     (the checkpoint thread), while the step thread uses MPI as well: MPI runs
//     with MPI_THREAD_MULTIPLE.
// Memory: each message under way is held once.
// Limits: what a dead peer did not take is never freed, and such a process ends
//     by _exit or MPI_Abort, since MPI_Finalize would wait for it.

#ifndef HOLDFAST_CKPT_GROUP_MPI_GROUP_H_
#define HOLDFAST_CKPT_GROUP_MPI_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

// Collective over MPI_COMM_WORLD; MPI is up. Host names are exchanged here.
// kFailedPrecondition: MPI was not started with MPI_THREAD_MULTIPLE.
absl::StatusOr<std::unique_ptr<Group>> OpenMpiGroup();

// The same over another communicator, as MPI_Comm_c2f gives it, so that callers
// need no mpi.h. kInvalidArgument: it is none.
absl::StatusOr<std::unique_ptr<Group>> OpenMpiGroup(int fortran_communicator);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_MPI_GROUP_H_
