// trainer/parallel/mpi_job.cc: MPI up, host names, MPI down.

#include "trainer/parallel/mpi_job.h"

#include <unistd.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/group/mpi_group.h"
#include "trainer/parallel/mpi_collectives.h"

// The C++ bindings of Open MPI 4 are deprecated and pull in another library.
#define OMPI_SKIP_MPICXX 1
#include "mpi.h"

namespace holdfast::trainer {
namespace {

class MpiJob final : public Job {
 public:
  MpiJob(const LauncherEnv& env, std::unique_ptr<Collectives> world,
         std::vector<std::string> hosts)
      : Job(env), world_(std::move(world)), hosts_(std::move(hosts)) {}

  Collectives& world() const override { return *world_; }

  std::string HostOf(int rank) const override {
    HF_CHECK(rank >= 0 && rank < size(), "host of rank %d of %d", rank, size());
    return hosts_[static_cast<size_t>(rank)];
  }

  absl::StatusOr<std::unique_ptr<ckpt::Group>> OpenCheckpointGroup() override {
    // The wait for the others is ours; MPI's own would spin.
    HF_RETURN_IF_ERROR(world_->Barrier());
    return ckpt::OpenMpiGroup();
  }

  absl::Status Finalize() override {
    HF_RETURN_IF_ERROR(world_->Barrier());
    world_.reset();
    if (MPI_Finalize() != MPI_SUCCESS) {
      return absl::UnavailableError("MPI_Finalize failed");
    }
    return absl::OkStatus();
  }

  [[noreturn]] void Abort(int code) override {
    ckpt::FlushLog();
    // mpirun ends the others when one rank leaves without MPI_Finalize, and
    // takes this rank's code for the job's. srun needs to be told.
    if (env_.launcher != LauncherEnv::Launcher::kMpirun) {
      MPI_Abort(MPI_COMM_WORLD, code);
    }
    _exit(code);
  }

 private:
  std::unique_ptr<Collectives> world_;
  const std::vector<std::string> hosts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> OpenMpiJob(const LauncherEnv& env,
                                                Heartbeat* heartbeat) {
  int level = MPI_THREAD_SINGLE;
  {
    const Heartbeat::Scope scope(heartbeat, "MPI_Init_thread");
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) !=
        MPI_SUCCESS) {
      return absl::UnavailableError("MPI_Init_thread failed");
    }
  }
  if (level != MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this MPI gives thread level %d; the checkpoint thread needs %d "
        "(MPI_THREAD_MULTIPLE)",
        level, MPI_THREAD_MULTIPLE));
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> world,
                      OpenMpiWorld(heartbeat));

  const size_t name_bytes = MPI_MAX_PROCESSOR_NAME;
  const auto ranks = static_cast<size_t>(world->size());
  std::vector<char> names(name_bytes * ranks);
  std::vector<int64_t> first(ranks);
  const std::vector<int64_t> count(ranks, static_cast<int64_t>(name_bytes));
  for (size_t r = 0; r < ranks; ++r) {
    first[r] = static_cast<int64_t>(r * name_bytes);
  }
  char* const mine = names.data() + first[static_cast<size_t>(world->rank())];
  int length = 0;
  MPI_Get_processor_name(mine, &length);
  HF_RETURN_IF_ERROR(
      world->AllGatherV(Bytes(std::span<char>(names)), first, count));
  std::vector<std::string> hosts;
  for (size_t r = 0; r < ranks; ++r) {
    const char* name = names.data() + first[r];
    hosts.emplace_back(name, strnlen(name, name_bytes));
    if (hosts.back().empty()) hosts.back() = "unknown-host";
  }
  return std::make_unique<MpiJob>(env, std::move(world), std::move(hosts));
}

}  // namespace holdfast::trainer
