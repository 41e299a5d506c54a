// tools/holdfast/child_process.h: runs another program and watches it.

#ifndef HOLDFAST_TOOLS_HOLDFAST_CHILD_PROCESS_H_
#define HOLDFAST_TOOLS_HOLDFAST_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace holdfast::tools {

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is a path or a name on PATH
  std::vector<std::pair<std::string, std::string>> env;  // added or replaced
  // "" inherits; otherwise the file is created anew.
  std::string stdout_file;
  std::string stderr_file;
};

// A child is in a process group of its own: a signal from the terminal does not
// reach it unless it is passed on. Destroying a child that still runs kills its
// group.
class ChildProcess {
 public:
  // kUnavailable names the program and the reason.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void Signal(int signal);       // to the child
  void SignalGroup(int signal);  // to the child and all it started

  // True once it has ended; never blocks.
  bool Poll();
  // Waits up to `timeout`. True when it has ended.
  bool WaitFor(absl::Duration timeout);
  // After the end: its exit status, or 128 + n when signal n ended it.
  int exit_code() const { return exit_code_; }

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  bool ended_ = false;
  int exit_code_ = 0;
};

// The command as a user would type it.
std::string ShellCommand(const std::vector<std::string>& argv);

// The path of this very program, for starting it again.
std::string OwnProgramPath();

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_CHILD_PROCESS_H_
