// tests/cli/run_program.h: starts a built program and keeps what it said.

#ifndef HOLDFAST_TESTS_CLI_RUN_PROGRAM_H_
#define HOLDFAST_TESTS_CLI_RUN_PROGRAM_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::tests {

struct Outcome {
  int code = -1;    // The exit code, or 128 + n by signal n.
  std::string out;  // stdout
  std::string err;  // stderr
};

inline std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
  return stream << "code " << outcome.code << "\nstdout: " << outcome.out
                << "\nstderr: " << outcome.err;
}

inline std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A directory of the running test's own, removed with the object.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string(info->test_suite_name()) + "." + info->name() + "." +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return path_ / name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

// Runs build/.../bin/`program` and waits for it. `out_path` takes its stdout
// instead of Outcome::out, such as "/dev/full". `before` is called in the new
// process, for limits; false: it ends with 126.
inline Outcome RunProgram(const std::string& program,
                          const std::vector<std::string>& arguments,
                          const std::string& out_path = "",
                          const std::function<bool()>& before = nullptr) {
  const std::string stem =
      testing::TempDir() + "/run-" + std::to_string(getpid());
  const std::string out = out_path.empty() ? stem + ".out" : out_path;
  const std::string err = stem + ".err";
  const std::string path = std::string(HOLDFAST_BIN_DIR) + "/" + program;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    if (before && !before()) _exit(126);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (out_path.empty()) outcome.out = FileText(out);
  outcome.err = FileText(err);
  if (out_path.empty()) std::filesystem::remove(out);
  std::filesystem::remove(err);
  return outcome;
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_CLI_RUN_PROGRAM_H_
