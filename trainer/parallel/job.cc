// trainer/parallel/job.cc: reading the launcher's variables, and the job of one
// rank.

#include "trainer/parallel/job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/group/inproc_group.h"
#include "trainer/parallel/inproc_collectives.h"
#ifdef HOLDFAST_WITH_MPI
#include "trainer/parallel/mpi_job.h"
#endif

namespace holdfast::trainer {
namespace {

class LoneJob final : public Job {
 public:
  explicit LoneJob(Heartbeat* heartbeat)
      : Job({}), inproc_(1), world_(inproc_.Join(0, heartbeat)) {
    char name[256] = "";
    if (gethostname(name, sizeof(name) - 1) == 0) host_ = name;
    if (host_.empty()) host_ = "localhost";
  }

  Collectives& world() const override { return *world_; }
  std::string HostOf(int) const override { return host_; }
  absl::StatusOr<std::unique_ptr<ckpt::Group>> OpenCheckpointGroup() override {
    return std::move(ckpt::MakeInprocGroups(1)[0]);
  }
  absl::Status Finalize() override { return absl::OkStatus(); }
  [[noreturn]] void Abort(int code) override {
    ckpt::FlushLog();
    _exit(code);
  }

 private:
  InprocWorld inproc_;
  std::unique_ptr<Collectives> world_;
  std::string host_;
};

// Of Slurm's "2(x3),1" (three nodes with 2 tasks, then one with 1), what node
// `node` has; 1 where the text does not say.
int TasksOfNode(const std::string& text, int node) {
  const std::vector<std::string> runs = absl::StrSplit(text, ',');
  for (const std::string& run : runs) {
    int tasks = 0;
    int nodes = 1;
    const int read = std::sscanf(run.c_str(), "%d(x%d)", &tasks, &nodes);
    if (read < 1 || tasks < 1 || nodes < 1) return 1;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 1;
}

}  // namespace

absl::StatusOr<LauncherEnv> ReadLauncherEnv(
    const std::function<const char*(const char* name)>& get) {
  const auto number = [&get](const char* name, int missing) {
    const char* const text = get(name);
    int value = 0;
    return text != nullptr && absl::SimpleAtoi(text, &value) && value >= 0
               ? value
               : missing;
  };
  LauncherEnv env;
  if (get("OMPI_COMM_WORLD_SIZE") != nullptr) {
    env.launcher = LauncherEnv::Launcher::kMpirun;
    env.rank = number("OMPI_COMM_WORLD_RANK", 0);
    env.size = number("OMPI_COMM_WORLD_SIZE", 1);
    env.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    env.local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    return env;
  }
  // A batch script has SLURM_PROCID too; only what srun started has a step with
  // tasks.
  const int step_tasks = number("SLURM_STEP_NUM_TASKS", 0);
  if (get("PMIX_RANK") != nullptr) {
    env.launcher = LauncherEnv::Launcher::kSrun;
    env.rank = number("PMIX_RANK", 0);
    env.size = step_tasks > 0 ? step_tasks : number("SLURM_NTASKS", 1);
    env.local_rank = number("SLURM_LOCALID", 0);
    const char* const tasks = get("SLURM_STEP_TASKS_PER_NODE");
    env.local_size =
        tasks != nullptr ? TasksOfNode(tasks, number("SLURM_NODEID", 0)) : 1;
    env.processors = number("SLURM_CPUS_ON_NODE", 0);
    return env;
  }
  if (step_tasks > 1) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "srun started %d tasks without PMIx, so each of them would train "
        "alone; start them with srun --mpi=pmix",
        step_tasks));
  }
  return env;
}

int ProcessorsOfRank(int allowed, int given, int ranks) {
  if (given > 0 && allowed < given) return allowed;
  const int shared = given > 0 ? given : allowed;
  return std::max(1, shared / std::max(1, ranks));
}

std::string Job::launcher() const {
  switch (env_.launcher) {
    case LauncherEnv::Launcher::kNone:
      return "none";
    case LauncherEnv::Launcher::kMpirun:
      return "mpirun";
    case LauncherEnv::Launcher::kSrun:
      return "srun";
  }
  return "none";
}

absl::StatusOr<std::unique_ptr<Job>> OpenJob(Heartbeat* heartbeat) {
  HF_ASSIGN_OR_RETURN(const LauncherEnv env,
                      ReadLauncherEnv([](const char* name) -> const char* {
                        return std::getenv(name);
                      }));
  if (env.launcher == LauncherEnv::Launcher::kNone) {
    return std::make_unique<LoneJob>(heartbeat);
  }
#ifdef HOLDFAST_WITH_MPI
  return OpenMpiJob(env, heartbeat);
#else
  if (env.size == 1) return std::make_unique<LoneJob>(heartbeat);
  return absl::FailedPreconditionError(absl::StrFormat(
      "started as rank %d of %d, but this program was built without MPI "
      "(HOLDFAST_MPI=OFF)",
      env.rank, env.size));
#endif
}

}  // namespace holdfast::trainer
