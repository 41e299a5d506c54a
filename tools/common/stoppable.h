// tools/common/stoppable.h: long work that ends cleanly on Ctrl-C.
//
//   trainer::InstallSignalHandlers();
//   ... once in a while: if (StopAsked()) stop = true;
//   return StoppedCode(status);

#ifndef HOLDFAST_TOOLS_COMMON_STOPPABLE_H_
#define HOLDFAST_TOOLS_COMMON_STOPPABLE_H_

#include "absl/status/status.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/fault/signals.h"

namespace holdfast::tools {

inline bool StopAsked() { return trainer::LeaveSignal() != 0; }

// The exit code of a command that ends with `status`: 128 + n where signal n
// has cancelled it.
inline int StoppedCode(const absl::Status& status) {
  if (absl::IsCancelled(status) && StopAsked()) {
    return trainer::kExitSignalBase + trainer::LeaveSignal();
  }
  return trainer::ExitCodeOf(status);
}

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_COMMON_STOPPABLE_H_
