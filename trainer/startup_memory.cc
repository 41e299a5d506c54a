// trainer/startup_memory.cc: what is free is for all ranks of the host.

#include "trainer/startup_memory.h"

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/communication_memory.h"
#include "trainer/run_device.h"

namespace holdfast::trainer {
namespace {

// Bytes of memory that the system could give out now.
int64_t AvailableMemoryBytes() {
  std::FILE* const file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return 0;
  char line[256];
  long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib * 1024;
}

}  // namespace

absl::Status CheckRunMemory(TrainRun& run, const StepOptions& options,
                            const TrainEnv& env) {
  const ckpt::Rank rank{env.world->rank()};
  HF_ASSIGN_OR_RETURN(MemoryPlan plan, StepRunner::PlanMemory(options, rank));
  const int64_t available = AvailableMemoryBytes();
  if (run.device.on_gpu()) {
    if (run.device_mesh != nullptr) {
      HF_RETURN_IF_ERROR(CheckOverlap(run.device, run.config.overlap,
                                      env.world->rank(), env.host));
      plan.communication =
          PlanNcclMemory(run.mesh, rank, env.ranks_on_host).device();
    }
    run.memory_planned_bytes = plan.total();
    HF_RETURN_IF_ERROR(
        CheckGpuMemory(run.device, plan, env.world->rank(), env.host));
    if (run.device_mesh != nullptr || env.world->size() == 1) {
      return absl::OkStatus();
    }
    HF_ASSIGN_OR_RETURN(const int64_t pinned,
                        StepRunner::PlanPinned(options, rank));
    return CheckPinnedMemory(pinned, available / env.ranks_on_host,
                             env.world->rank(), env.host);
  }
  run.memory_planned_bytes = plan.total();
  if (available > 0 && plan.total() > available / env.ranks_on_host) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "rank %d needs %.2f GB (weights %.2f, gradients %.2f, optimizer %.2f, "
        "partial sums %.2f, activations %.2f, buffers %.2f), %s has %.2f GB "
        "free for %d ranks; use more hosts, a smaller batch.micro_seqs or a "
        "smaller model",
        env.world->rank(), plan.total() / 1e9, plan.weights / 1e9,
        plan.gradients / 1e9, plan.optimizer / 1e9, plan.live_sums / 1e9,
        plan.activations / 1e9, plan.buffers / 1e9, env.host, available / 1e9,
        env.ranks_on_host));
  }
  return absl::OkStatus();
}

}  // namespace holdfast::trainer
