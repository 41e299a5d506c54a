// trainer/start_history.cc: see start_history.h.

#include "trainer/start_history.h"

#include <optional>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/run_records.h"

namespace holdfast::trainer {
namespace {

// Starts in a row from the same step, none of which made one, that end a run.
constexpr int kStartsWithoutProgressMax = 3;

// The step whose save this event says was committed.
std::optional<int64_t> CommittedStep(const JournalEvent& event) {
  const auto outcome = event.facts.find("outcome");
  const auto step = event.facts.find("step");
  if (event.event != "save" || outcome == event.facts.end() ||
      step == event.facts.end() || outcome->second.text != "committed") {
    return std::nullopt;
  }
  return step->second.integer;
}

}  // namespace

std::string CommittedProof(const std::string& run_dir) {
  const auto events = ReadJournal(run_dir);
  if (!events.ok()) return "";
  for (auto event = events->rbegin(); event != events->rend(); ++event) {
    if (const std::optional<int64_t> step = CommittedStep(*event)) {
      return absl::StrFormat("journal.jsonl says that step %d was saved",
                             *step);
    }
  }
  return "";
}

absl::Status RefuseWithoutProgress(
    const std::string& run_dir, int64_t step_now,
    const std::vector<std::string>& accept_change) {
  HF_ASSIGN_OR_RETURN(const std::vector<JournalEvent> events,
                      ReadJournal(run_dir));
  int starts = 0;
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->event == "stop") {
      const auto code = event->facts.find("exit_code");
      if (code != event->facts.end() &&
          (code->second.integer == 0 || code->second.integer == 75)) {
        break;
      }
    }
    // Lost again since, or gone back behind on purpose.
    if (CommittedStep(*event).value_or(-1) > step_now) break;
    if (event->event != "start") continue;
    const auto step = event->facts.find("step");
    if (step == event->facts.end() || step->second.integer != step_now) {
      break;
    }
    ++starts;
  }
  for (const std::string& name : accept_change) {
    if (name == kAcceptNoProgress) return absl::OkStatus();
  }
  if (starts < kStartsWithoutProgressMax) return absl::OkStatus();
  return absl::CancelledError(absl::StrFormat(
      "the last %d starts of %s all began at step %d and ended without a saved "
      "step; look at incarnations/*/logs, then start with "
      "--accept-change=%s",
      starts, run_dir, step_now, kAcceptNoProgress));
}

}  // namespace holdfast::trainer
