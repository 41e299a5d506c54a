// tools/holdfast/launch_rank.h: the wrapper that stands between mpirun and one
// rank, in a process of its own.
//
// mpirun ends a job with TERM, which to a rank is a wish to save and leave, and
// tells nobody how each rank ended. So mpirun starts a wrapper, and the wrapper
// starts the rank: it writes the rank's pid and its end into files that the
// launcher reads, kills the rank when mpirun gives the job up, and dies with
// mpirun as the rank dies with it.

#ifndef HOLDFAST_TOOLS_HOLDFAST_LAUNCH_RANK_H_
#define HOLDFAST_TOOLS_HOLDFAST_LAUNCH_RANK_H_

#include <string>
#include <vector>

namespace holdfast::tools {

// Names inside the launcher's directory.
std::string RankPidFile(const std::string& dir, int rank);
std::string RankEndFile(const std::string& dir, int rank);
// Pipes that carry the ranks' output to the launcher.
std::string LaunchStdout(const std::string& dir);
std::string LaunchStderr(const std::string& dir);
// Set when the launcher writes to a terminal: rank 0's stderr goes there
// straight, so that it can draw a progress line.
inline constexpr const char* kLaunchTtyVariable = "HOLDFAST_LAUNCH_TTY";

// Runs `command` as the rank that the environment names; an exit code for
// mpirun, 0 for a rank that saved and asks to be started again.
int RunRankWrapper(const std::string& dir,
                   const std::vector<std::string>& command);

// A verb of this program, or a path (with a slash) to another one.
std::vector<std::string> RankCommand(const std::vector<std::string>& command);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_LAUNCH_RANK_H_
