// trainer/startup_memory.h: whether a run's memory fits, before any rank
// allocates. A part of startup.h.
//
// Thread: the step thread.

#ifndef HOLDFAST_TRAINER_STARTUP_MEMORY_H_
#define HOLDFAST_TRAINER_STARTUP_MEMORY_H_

#include "absl/status/status.h"
#include "trainer/startup.h"
#include "trainer/step.h"

namespace holdfast::trainer {

// Sets run.memory_planned_bytes. Fails with kResourceExhausted where a rank's
// plan exceeds its share of the host's or the GPU's free memory, and as
// CheckOverlap (run_device.h) does. Not collective.
absl::Status CheckRunMemory(TrainRun& run, const StepOptions& options,
                            const TrainEnv& env);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STARTUP_MEMORY_H_
