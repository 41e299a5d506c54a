// tools/holdfast/drill.cc: what all drills share.

#include "tools/holdfast/drill.h"

#include <cstdio>
#include <map>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/run_records.h"

namespace holdfast::tools {

absl::StatusOr<ChildProcess> DrillJob::Start(
    const ckpt::Mesh& mesh,
    const std::vector<std::pair<std::string, std::string>>& env) const {
  ChildOptions child;
  child.argv = {OwnProgramPath(),
                "launch",
                "-n",
                absl::StrFormat("%d", mesh.world()),
                "--",
                "train",
                "--config",
                options_.config};
  for (const std::string& set : options_.sets) {
    child.argv.insert(child.argv.end(), {"--set", set});
  }
  child.argv.insert(
      child.argv.end(),
      {"--set", absl::StrFormat("parallel.tp=%d", mesh.tp), "--set",
       absl::StrFormat("parallel.pp=%d", mesh.pp), "--run", run_dir_});
  child.env = env;
  std::string shown = ShellCommand(child.argv);
  for (auto entry = env.rbegin(); entry != env.rend(); ++entry) {
    shown = entry->first + "='" + entry->second + "' " + shown;
  }
  std::printf("$ %s\n", shown.c_str());
  std::fflush(stdout);
  return ChildProcess::Start(child);
}

int64_t DrillJob::LastStep() const {
  const auto lines = trainer::ReadMetrics(run_dir_);
  return lines.ok() && !lines->empty() ? lines->back().step : 0;
}

int RunDrills(const DrillOptions& options) {
  using Drill = int (*)(const DrillOptions&);
  static const std::map<std::string, Drill> drills = {
      {"kill-mid-save", &RunKillMidSave},
  };
  if (options.names.empty()) {
    std::fprintf(stderr, "drill: no drill was named; known: kill-mid-save\n");
    return trainer::kExitUsage;
  }
  for (const std::string& name : options.names) {
    const auto found = drills.find(name);
    if (found == drills.end()) {
      std::fprintf(stderr, "drill: '%s' is not a drill; known: kill-mid-save\n",
                   name.c_str());
      return trainer::kExitUsage;
    }
    const int code = found->second(options);
    if (code != trainer::kExitFinished) return code;
  }
  return trainer::kExitFinished;
}

}  // namespace holdfast::tools
