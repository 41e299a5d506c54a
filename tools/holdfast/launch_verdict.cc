// tools/holdfast/launch_verdict.cc: see the header.

#include "tools/holdfast/launch_verdict.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_format.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

std::string Describe(const RankEnd& end) {
  if (end.signal != 0) {
    return absl::StrFormat("killed by signal %d (%s)", end.signal,
                           strsignal(end.signal));
  }
  return absl::StrFormat("ended with exit code %d", end.code);
}

}  // namespace

std::string EncodeRankEnd(const RankEnd& end) {
  return absl::StrFormat("rank %d code %d signal %d with_others %d time %d\n",
                         end.rank, end.code, end.signal,
                         end.with_others ? 1 : 0, end.time_unix_ms);
}

std::optional<RankEnd> DecodeRankEnd(std::string_view text) {
  const std::string line(text);
  RankEnd end;
  int with_others = 0;
  long long time = 0;
  if (std::sscanf(
          line.c_str(), "rank %d code %d signal %d with_others %d time %lld",
          &end.rank, &end.code, &end.signal, &with_others, &time) != 5) {
    return std::nullopt;
  }
  end.with_others = with_others != 0;
  end.time_unix_ms = time;
  return end;
}

LaunchVerdict JudgeLaunch(int ranks, std::span<const RankEnd> ends,
                          std::span<const trainer::FailureReport> reports) {
  bool saved = false;
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ends) {
    if (end.with_others || end.ExitCode() == trainer::kExitFinished) continue;
    if (end.ExitCode() == trainer::kExitSavedRestart) {
      saved = true;
    } else if (first == nullptr || end.time_unix_ms < first->time_unix_ms) {
      first = &end;
    }
  }
  LaunchVerdict verdict;
  if (first == nullptr) {
    if (static_cast<int>(ends.size()) == ranks &&
        std::none_of(ends.begin(), ends.end(),
                     [](const RankEnd& end) { return end.with_others; })) {
      verdict.exit_code =
          saved ? trainer::kExitSavedRestart : trainer::kExitFinished;
      return verdict;
    }
    verdict.exit_code = trainer::kExitIo;
    for (int rank = 0; rank < ranks && !verdict.first_rank; ++rank) {
      const auto found =
          std::find_if(ends.begin(), ends.end(), [&](const RankEnd& end) {
            return end.rank == rank && !end.with_others;
          });
      if (found == ends.end()) verdict.first_rank = rank;
    }
    verdict.what = "disappeared without a word; mpirun ended the others";
    return verdict;
  }
  verdict.exit_code = first->ExitCode();
  verdict.first_rank = first->rank;
  verdict.what = Describe(*first);
  const std::optional<int> suspect = trainer::FirstFailingRank(reports);
  if (!suspect.has_value()) return verdict;

  // Watchdogs spoke. Unless a rank died before they did, what they say counts.
  const auto earliest = std::min_element(
      reports.begin(), reports.end(), [](const auto& a, const auto& b) {
        return a.time_unix_ms < b.time_unix_ms;
      });
  if (first->time_unix_ms < earliest->time_unix_ms) return verdict;
  verdict.first_rank = suspect;
  const auto own =
      std::find_if(reports.begin(), reports.end(),
                   [&](const auto& report) { return report.rank == *suspect; });
  if (own != reports.end()) {
    verdict.what = own->message;
  } else {
    verdict.what = absl::StrFormat("silent; %s", earliest->message);
  }
  return verdict;
}

std::string NextAction(int exit_code) {
  switch (exit_code) {
    case trainer::kExitDifferent:
      return "nothing broke: what was asked for was not found, see above";
    case trainer::kExitUsage:
      return "correct the command line (--help shows it)";
    case trainer::kExitDataLoss:
      return "look at the checkpoints with ckptctl verify";
    case trainer::kExitNoCheckpoint:
      return "bring back, mount or finish what the message names";
    case trainer::kExitBug:
      return "keep the log: this is a bug of holdfast; starting again resumes "
             "from the last checkpoint";
    case trainer::kExitNoProgress:
      return "find out why no step has been saved since the last start";
    case trainer::kExitConfig:
      return "correct what the message names, or accept it with "
             "--accept-change=NAME";
    default:
      return "start the same command again: it resumes from the last "
             "checkpoint";
  }
}

std::string RunDirOf(std::span<const std::string> command) {
  constexpr std::string_view kWithValue = "--run=";
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i].starts_with(kWithValue)) {
      return command[i].substr(kWithValue.size());
    }
    if (command[i] == "--run" && i + 1 < command.size()) return command[i + 1];
  }
  return "";
}

}  // namespace holdfast::tools
