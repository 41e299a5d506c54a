// What scripts rely on of `holdfast doctor`: exit codes, the keys of its JSON,
// and that nothing stays behind.

#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_program.h"
#include "tests/support/scratch_fs.h"
#include "tools/holdfast/child_process.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Outcome Doctor(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"doctor"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunProgram("holdfast", all);
}

std::string MakeFolder(const TestFolder& folder) {
  const std::string dir = folder / "runs";
  std::filesystem::create_directories(dir);
  return dir;
}

TEST(DoctorTest, SaysWhatADirectoryIsGoodForAndLeavesNothing) {
  const TestFolder folder;
  const std::string dir = MakeFolder(folder);
  const Outcome outcome =
      Doctor({"--dir", dir, "--seconds", "1", "--mib", "32"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(dir + ": "), HasSubstr("io_uring"),
                                 HasSubstr("raw write"), HasSubstr("a sync"),
                                 HasSubstr("Checkpoints can be kept here.")));
  EXPECT_TRUE(std::filesystem::is_empty(dir));
}

TEST(DoctorTest, JsonHasWhatWasFoundAndMeasured) {
  const TestFolder folder;
  const std::string dir = MakeFolder(folder);
  const Outcome outcome =
      Doctor({"--dir", dir, "--seconds", "1", "--mib", "32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["fit"], true);
  EXPECT_GT(json["write_bytes_per_s"], 0);
  EXPECT_GT(json["bytes_free"], 0);
  EXPECT_GT(json["put_seconds"], 0);
  EXPECT_LE(json["bytes_measured"], 32 << 20);
  std::vector<std::string> names;
  for (const auto& finding : json["findings"]) {
    names.push_back(finding["name"]);
    EXPECT_TRUE(finding["needed"] == false || finding["ok"] == true) << finding;
  }
  EXPECT_THAT(names, testing::IsSupersetOf(
                         {"io_uring", "O_DIRECT", "registered buffers",
                          "directory sync", "exclusive create", "hard link",
                          "rename, no replace", "a commit, rehearsed"}));
}

TEST(DoctorTest, SaysWhetherRunsCouldUseAGpu) {
  const TestFolder folder;
  const std::string dir = MakeFolder(folder);
  const Outcome outcome =
      Doctor({"--dir", dir, "--seconds", "1", "--mib", "32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const auto json = nlohmann::json::parse(outcome.out);
  nlohmann::json gpu;
  for (const auto& finding : json["findings"]) {
    if (finding["name"] == "GPU") gpu = finding;
  }
  ASSERT_TRUE(gpu.is_object()) << outcome;
  EXPECT_EQ(gpu["needed"], false);
  // One line either way: why not, or which.
  if (gpu["ok"] == true) {
    EXPECT_GE(json["gpus"].size(), 1u);
    EXPECT_GT(json["gpus"][0]["bytes_total"], 0);
    EXPECT_THAT(gpu["what"], HasSubstr("device = cuda works here"));
  } else {
    EXPECT_EQ(json["gpus"].size(), 0u);
    EXPECT_THAT(gpu["system_says"], HasSubstr("use device = cpu"));
    EXPECT_THAT(gpu["what"], "runs use the processor");
  }
}

TEST(DoctorTest, MemoryIsNotADisk) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const std::string dir =
      "/dev/shm/holdfast-doctor-test." + std::to_string(getpid());
  std::filesystem::create_directory(dir);
  const Outcome outcome =
      Doctor({"--dir", dir, "--seconds", "1", "--mib", "32"});
  const bool left_nothing = std::filesystem::is_empty(dir);
  std::filesystem::remove_all(dir);
  EXPECT_THAT(outcome.out, HasSubstr("warning: this is memory, not a disk"));
  EXPECT_TRUE(left_nothing);
}

TEST(DoctorTest, AnAlmostFullDirectoryIsDiagnosedWithoutItsSpeed) {
  const TestFolder folder;
  const auto fs = ScratchFs::Make("tmpfs", folder / "small", 8);
  if (!fs.ok()) GTEST_SKIP() << fs.status().message();
  const Outcome text = Doctor({"--dir", (*fs)->path()});
  EXPECT_EQ(text.code, 0) << text;
  EXPECT_THAT(text.out, AllOf(HasSubstr("directory sync"),
                              HasSubstr("raw speed  unknown: "),
                              HasSubstr("an eighth of the free space")));
  const Outcome json = Doctor({"--dir", (*fs)->path(), "--json"});
  ASSERT_EQ(json.code, 0) << json;
  EXPECT_THAT(nlohmann::json::parse(json.out)["speed_unknown"],
              HasSubstr("are free"));
}

TEST(DoctorTest, WhatIsNoDirectoryIs78) {
  const TestFolder folder;
  folder.Write("file", "x");
  for (const std::string& dir : {folder / "none", folder / "file"}) {
    const Outcome outcome = Doctor({"--dir", dir});
    EXPECT_EQ(outcome.code, 78) << outcome;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("holdfast doctor: "), HasSubstr(dir)));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(DoctorTest, ADirectoryThatCannotBeWrittenIs74) {
  // Nobody, root included, creates files there.
  const Outcome outcome = Doctor({"--dir", "/sys/kernel"});
  EXPECT_EQ(outcome.code, 74) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("/sys/kernel"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("bug")));
}

TEST(DoctorTest, LeavesNothingWhenItIsInterrupted) {
  const TestFolder folder;
  const std::string dir = MakeFolder(folder);
  tools::ChildOptions options;
  options.argv = {std::string(HOLDFAST_BIN_DIR) + "/holdfast",
                  "doctor",
                  "--dir",
                  dir,
                  "--seconds",
                  "20",
                  "--mib",
                  "65536"};
  options.stdout_file = folder / "out";
  options.stderr_file = folder / "err";
  for (const int wait_ms : {5, 50, 300}) {
    auto child = tools::ChildProcess::Start(options);
    ASSERT_TRUE(child.ok()) << child.status();
    if (!child->WaitFor(absl::Milliseconds(wait_ms))) child->Signal(SIGINT);
    ASSERT_TRUE(child->WaitFor(absl::Seconds(20)));
    EXPECT_EQ(child->exit_code(), 128 + SIGINT) << wait_ms;
    EXPECT_TRUE(std::filesystem::is_empty(dir)) << wait_ms;
  }
}

}  // namespace
}  // namespace holdfast::tests
