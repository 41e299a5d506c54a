// tools/holdfast/launch_verdict.h: what the ends of all ranks mean for the job.
// Pure.

#ifndef HOLDFAST_TOOLS_HOLDFAST_LAUNCH_VERDICT_H_
#define HOLDFAST_TOOLS_HOLDFAST_LAUNCH_VERDICT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/fault/failure_report.h"

namespace holdfast::tools {

// How one rank ended, as its wrapper saw it.
struct RankEnd {
  int rank = 0;
  int code = 0;              // Exit status; 0 when a signal ended it.
  int signal = 0;            // 0: it ended by itself.
  bool with_others = false;  // Killed because another one had failed.
  int64_t time_unix_ms = 0;

  int ExitCode() const { return signal != 0 ? 128 + signal : code; }
  friend bool operator==(const RankEnd&, const RankEnd&) = default;
};

// One line, and back. nullopt when the line is not one.
std::string EncodeRankEnd(const RankEnd& end);
std::optional<RankEnd> DecodeRankEnd(std::string_view text);

struct LaunchVerdict {
  int exit_code = 0;
  std::optional<int> first_rank;  // Set when the job failed.
  std::string what;               // "killed by signal 9 (Killed)", ...
};

// 0 when all ranks finished; 75 when they finished or saved and ask to be
// started again; otherwise the code of the rank that failed first. A watchdog
// that gave up names the rank it waited for. `ends` may lack ranks.
LaunchVerdict JudgeLaunch(int ranks, std::span<const RankEnd> ends,
                          std::span<const trainer::FailureReport> reports);

// What a person does about an exit code.
std::string NextAction(int exit_code);

// The value of --run among a command's words; "" when there is none.
std::string RunDirOf(std::span<const std::string> command);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_LAUNCH_VERDICT_H_
