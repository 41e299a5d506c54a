// trainer/fault/signals.h: what a signal asks of the run.
//
//   SIGUSR1           save, go on
//   SIGTERM, SIGINT   save, then leave with 75
//   a second SIGTERM or SIGINT   leave at once with 128 + n
//
// Launchers and timeout(1) signal a process and its group: what comes within
// kSameWishMs of the first SIGTERM or SIGINT is the same wish, not a second.
//
// A handler stores into atomics and nothing else (the second SIGTERM calls
// _exit). The step thread looks before it takes the run, after the load, at
// every step boundary and between the parts of an evaluation; all ranks then
// agree on the largest action, since a signal does not reach all of them at the
// same step. A load itself is not cut short: it changes nothing that a kill
// could harm.

#ifndef HOLDFAST_TRAINER_FAULT_SIGNALS_H_
#define HOLDFAST_TRAINER_FAULT_SIGNALS_H_

namespace holdfast::trainer {

// Ordered: ranks agree on the largest.
enum class SignalAction : int {
  kNone = 0,
  kSave = 1,
  kSaveAndLeave = 2,
};

inline constexpr int kSameWishMs = 300;

// Once, by the main thread, before any other thread starts. System calls under
// way are restarted, not interrupted. Unblocks the signals: those that came
// while they were blocked (a launcher may start ranks so) are heard now.
void InstallSignalHandlers();

// Any thread; one relaxed load or two.
SignalAction RequestedAction();

// A save that answers SIGUSR1 has begun. A request to leave stays.
void ClearSaveRequest();

// The signal that asked to leave, 0 for none; for messages.
int LeaveSignal();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FAULT_SIGNALS_H_
