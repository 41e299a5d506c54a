// trainer/resume_state.h: all that a resume needs besides the tensors, in one
// struct, and its spelling as attributes of a checkpoint.
//
// There is no generator state, no loader state and no schedule state:
// randomness is counter-based, a sample is a function of its index, the
// learning rate is a function of the step.
//
// Attributes without a leading dot are part of the state's logical digest:
// equal runs have equal ones, whatever the layout and the time. The dotted ones
// describe the save.

#ifndef HOLDFAST_TRAINER_RESUME_STATE_H_
#define HOLDFAST_TRAINER_RESUME_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/data/data_state.h"

namespace holdfast::trainer {

struct ResumeState {
  int64_t step = 0;           // steps finished
  uint64_t tokens = 0;        // counting tokens trained on
  int64_t skipped_steps = 0;  // steps whose gradient was not finite
  DataState data;             // the global cursor and the ranges it leaves out
  uint64_t seed = 0;
  std::string data_fingerprint;
  std::string numerics_fingerprint;
  std::string config;  // canonical text of the resolved configuration
  // Where a conversion from another program's files took the state from; empty
  // for what a run saved. Such a state has `model.*` in its configuration and
  // nothing else, and has seen no data that we know of.
  std::string imported_from = {};
};

std::map<std::string, std::string> ToAttributes(const ResumeState& state);

// kFailedPrecondition: an attribute is missing or malformed; names it.
absl::StatusOr<ResumeState> FromAttributes(
    const std::map<std::string, std::string>& attributes);

// The configuration that a checkpoint has; of an imported one only `model`
// means anything. kFailedPrecondition: it is not one.
absl::StatusOr<Config> SavedConfig(const ResumeState& saved);

// What differs between a checkpoint and this start in ways that change what is
// computed: configuration, data files, numerics. In the terms of
// --accept-change=NAME. Of an imported state only the model is compared, but
// for seq_len, on which no weight depends.
absl::StatusOr<std::vector<ConfigDifference>> CompareForResume(
    const ResumeState& saved, const Config& now,
    const std::string& data_fingerprint_now,
    const std::string& numerics_fingerprint_now);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_RESUME_STATE_H_
