// trainer/fault/failure_report.h: what a rank leaves behind when it gives up,
// so that whoever starts the job can name the rank that was first.
//
// One small file a rank, incarnations/NNN/failure-rank-00003.json, created
// exclusively: the first report of a rank stands.

#ifndef HOLDFAST_TRAINER_FAULT_FAILURE_REPORT_H_
#define HOLDFAST_TRAINER_FAULT_FAILURE_REPORT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::trainer {

struct FailureReport {
  int rank = 0;
  std::string host;
  std::string operation;  // What it was doing: "all-reduce sum dp".
  double seconds = 0;     // For how long.
  int waiting_for = -1;   // The rank whose message it awaited; -1: nobody's.
  std::string waiting_for_host;
  int exit_code = 0;
  int64_t time_unix_ms = 0;
  std::string message;  // One sentence for people.

  friend bool operator==(const FailureReport&, const FailureReport&) = default;
};

// One line of JSON.
std::string EncodeFailureReport(const FailureReport& report);

// kDataLoss when it is not what EncodeFailureReport writes.
absl::StatusOr<FailureReport> DecodeFailureReport(std::string_view text);

// "failure-rank-00003.json"
std::string FailureReportName(int rank);

// Creates the file in the existing directory `dir`. kAlreadyExists when the
// rank has reported before; kUnavailable on errors. Makes system calls only:
// the watch thread may call it whatever the step thread holds.
absl::Status WriteFailureReport(const std::string& dir,
                                const FailureReport& report);

// All reports in `dir`, by rank; files that cannot be read are left out.
std::vector<FailureReport> ReadFailureReports(const std::string& dir);

// Who failed first, by what the reports say: from the earliest report along
// who waits for whom, until a rank that waits for nobody or said nothing.
// nullopt without reports.
std::optional<int> FirstFailingRank(std::span<const FailureReport> reports);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FAULT_FAILURE_REPORT_H_
