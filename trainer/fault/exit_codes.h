// trainer/fault/exit_codes.h: the exit codes of every program here.
//
// One table, shared by the programs, the launcher and slurm/. Since a launcher
// may hide a code behind another one, `status.json` in the run has it too.

#ifndef HOLDFAST_TRAINER_FAULT_EXIT_CODES_H_
#define HOLDFAST_TRAINER_FAULT_EXIT_CODES_H_

#include "absl/status/status.h"

namespace holdfast::trainer {

enum ExitCode : int {
  kExitFinished = 0,
  kExitDifferent = 1,  // `diff` found a difference.
  kExitUsage = 64,
  kExitDataLoss = 65,
  kExitNoCheckpoint = 66,
  kExitBug = 70,
  kExitIo = 74,
  kExitSavedRestart = 75,  // Saved and asks to be started again.
  kExitNoProgress = 76,    // Nothing gained since the last start.
  kExitConfig = 78,        // Configuration, or run and checkpoint disagree.
  kExitSignalBase = 128,   // Plus the number of the signal.
};

// The code of a program that ends because of `status`. A full disk and a rank
// that never answered end a program as I/O does: another start may go well.
inline int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitFinished;
    case absl::StatusCode::kNotFound:
      return kExitNoCheckpoint;
    case absl::StatusCode::kDataLoss:
      return kExitDataLoss;
    case absl::StatusCode::kCancelled:
      return kExitNoProgress;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return kExitConfig;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAlreadyExists:
      return kExitIo;
    default:
      return kExitBug;
  }
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FAULT_EXIT_CODES_H_
