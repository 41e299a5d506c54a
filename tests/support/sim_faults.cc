// tests/support/sim_faults.cc: counting operations, and what becomes of each.

#include "tests/support/sim_faults.h"

#include "absl/strings/str_format.h"

namespace holdfast::tests {
namespace {

constexpr size_t kLogLines = 400;

}  // namespace

std::string_view Name(SimOp op) {
  switch (op) {
    case SimOp::kCreate:
      return "create";
    case SimOp::kWrite:
      return "write";
    case SimOp::kSync:
      return "sync";
    case SimOp::kMakeDir:
      return "mkdir";
    case SimOp::kSyncDir:
      return "syncdir";
    case SimOp::kRename:
      return "rename";
    case SimOp::kLink:
      return "link";
    case SimOp::kRemove:
      return "remove";
    case SimOp::kPut:
      return "put";
    case SimOp::kOpen:
      return "open";
    case SimOp::kRead:
      return "read";
    case SimOp::kList:
      return "list";
    case SimOp::kFreeSpace:
      return "free_space";
    case SimOp::kGet:
      return "get";
    case SimOp::kClose:
      return "close";
  }
  return "?";
}

void SimFaults::Start(int process) {
  dead_.erase(process);
  kill_after_.erase(process);
}

void SimFaults::PowerIsBack() {
  power_is_off_ = false;
  cut_after_.reset();
  kill_after_.clear();
  dead_.clear();
}

SimFaults::Decision SimFaults::Decide(int process, SimOp op,
                                      std::string_view name) {
  const auto log = [&](std::string_view end) {
    log_.push_back(absl::StrFormat("#%d process %d %s %s%s", ops_, process,
                                   Name(op), name, end));
    if (log_.size() > kLogLines) log_.pop_front();
  };
  if (power_is_off_) return {Verdict::kPowerIsOff, {}};
  if (is_dead(process)) return {Verdict::kProcessIsDead, {}};
  if (IsCounted(op)) {
    if (cut_after_.has_value() && (*cut_after_)-- == 0) {
      power_is_off_ = true;
      cut_after_.reset();
      log(": the power goes first");
      return {Verdict::kPowerIsOff, {}};
    }
    const auto kill = kill_after_.find(process);
    if (kill != kill_after_.end() && kill->second-- == 0) {
      kill_after_.erase(kill);
      dead_.insert(process);
      log(": the process dies first");
      return {Verdict::kProcessIsDead, {}};
    }
    ++ops_;
    ++ops_of_[process];
  }
  for (Armed& armed : faults_) {
    const SimFault& fault = armed.fault;
    if (fault.process >= 0 && fault.process != process) continue;
    if (fault.op.has_value() && *fault.op != op) continue;
    if (name.find(fault.name_contains) == std::string_view::npos) continue;
    ++armed.matches;
    if (armed.matches == fault.nth ||
        (fault.from_then_on && armed.matches > fault.nth)) {
      log(absl::StrFormat(": fails, %s", fault.status.ToString()));
      return {
          Verdict::kFails,
          absl::Status(fault.status.code(),
                       absl::StrFormat("%s %s: %s", Name(op), name,
                                       std::string(fault.status.message())))};
    }
  }
  log("");
  return {};
}

int64_t SimFaults::ops_of(int process) const {
  const auto found = ops_of_.find(process);
  return found == ops_of_.end() ? 0 : found->second;
}

std::string SimFaults::Log(size_t lines) const {
  std::string text;
  const size_t first = log_.size() > lines ? log_.size() - lines : 0;
  for (size_t i = first; i < log_.size(); ++i) text += log_[i] + "\n";
  return text;
}

}  // namespace holdfast::tests
