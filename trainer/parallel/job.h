// trainer/parallel/job.h: the processes that train together, and how this one
// finds the others.
//
// A process that no launcher started is a job of one rank and never touches
// MPI. Under mpirun, or srun --mpi=pmix, MPI comes up with MPI_THREAD_MULTIPLE:
// the step thread uses world() and what is split from it, the checkpoint thread
// owns the group.
//
// Thread: the step thread opens, closes and calls everything; Abort from any.
// Order: what was split from world(), then the checkpoint group, then the Job.

#ifndef HOLDFAST_TRAINER_PARALLEL_JOB_H_
#define HOLDFAST_TRAINER_PARALLEL_JOB_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/group/group.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

// What the environment says about this process, before MPI is asked.
struct LauncherEnv {
  enum class Launcher { kNone, kMpirun, kSrun };
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // Among the ranks of this host.
  int local_size = 1;
  int processors = 0;  // Of this host, for those ranks; 0: it does not say.
};

// `get` looks a variable up, null when it is not set. Open MPI's variables
// first, then Slurm's with PMIx.
//
// kFailedPrecondition: started by srun for several tasks but without PMIx, so
//     that each would believe to be alone.
absl::StatusOr<LauncherEnv> ReadLauncherEnv(
    const std::function<const char*(const char* name)>& get);

// How many processors a rank may keep busy. `allowed` is what the system lets
// it run on, `given` and `ranks` are LauncherEnv's processors and local_size. A
// rank that may run on fewer than were given to its host was bound to its own
// share; others divide.
int ProcessorsOfRank(int allowed, int given, int ranks);

class Job {
 public:
  virtual ~Job() = default;

  int rank() const { return world().rank(); }
  int size() const { return world().size(); }
  int local_rank() const { return env_.local_rank; }
  int local_size() const { return env_.local_size; }
  int processors() const { return env_.processors; }
  // "none", "mpirun", "srun".
  std::string launcher() const;

  virtual Collectives& world() const = 0;

  // Where a rank runs. Never empty.
  virtual std::string HostOf(int rank) const = 0;

  // The messages of the checkpoint layer, apart from the training's. Collective
  // over the job; once, before the checkpoint thread starts.
  virtual absl::StatusOr<std::unique_ptr<ckpt::Group>>
  OpenCheckpointGroup() = 0;

  // The orderly end, after every communicator and group is gone: waits for all
  // ranks. Skip it (and end with Abort or _exit) when a peer may be dead.
  virtual absl::Status Finalize() = 0;

  // Ends every process of the job, this one with exit code `code`.
  [[noreturn]] virtual void Abort(int code) = 0;

 protected:
  explicit Job(LauncherEnv env) : env_(env) {}
  LauncherEnv env_;
};

// Collective over what the launcher started. `heartbeat` may be null and
// outlives the job.
//
// kFailedPrecondition: a launcher started several ranks and this build has no
//     MPI, MPI has no MPI_THREAD_MULTIPLE, or srun was told nothing of PMIx.
absl::StatusOr<std::unique_ptr<Job>> OpenJob(Heartbeat* heartbeat);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_JOB_H_
