// trainer/start_history.h: what the journal of a run says to its next start.
//
// Read by rank 0 alone. A journal is for people too: one that cannot be read
// proves nothing.

#ifndef HOLDFAST_TRAINER_START_HISTORY_H_
#define HOLDFAST_TRAINER_START_HISTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace holdfast::trainer {

// The name by which a person lets such a run try again.
constexpr char kAcceptNoProgress[] = "no-progress";

// Why this run is known to have saved before, though no checkpoint of it may be
// there any more; "" when nothing says so.
std::string CommittedProof(const std::string& run_dir);

// A run that crashes before its first step, is started again, and crashes
// again, burns an allocation without end. kCancelled: the last starts all began
// at `step_now` and ended without a saved step, and `accept_change` does not
// say kAcceptNoProgress.
absl::Status RefuseWithoutProgress(
    const std::string& run_dir, int64_t step_now,
    const std::vector<std::string>& accept_change);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_START_HISTORY_H_
