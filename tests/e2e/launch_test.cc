// `holdfast launch` with real ranks: exit codes, signals, the first failing
// rank, and that nothing is left running. What the ranks do is in
// launch_probe.cc.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Processes, by their command line, other than this one.
int ProcessesNaming(const std::string& text) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    if (ReadFile(entry.path() / "cmdline").find(text) != std::string::npos) {
      ++count;
    }
  }
  return count;
}

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null") != 0) {
      GTEST_SKIP() << "mpirun is not installed (Debian package openmpi-bin)";
    }
    dir_ = testing::TempDir() + "/launch_" + std::to_string(getpid()) + "_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override {
    if (launch_ > 0) kill(launch_, SIGKILL);
    std::filesystem::remove_all(dir_);
  }

  // holdfast launch -n RANKS -- launch_probe WORDS. Every word list ends with
  // this test's directory, so that its processes can be told from others.
  void Start(int ranks, std::vector<std::string> words,
             std::vector<std::string> options = {}) {
    std::vector<std::string> command = {HOLDFAST_BIN_DIR "/holdfast", "launch",
                                        "-n", std::to_string(ranks)};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", HOLDFAST_BIN_DIR "/launch_probe"});
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--run", dir_});
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    launch_ = fork();
    if (launch_ == 0) {
      if (freopen((dir_ + "/out").c_str(), "w", stdout) == nullptr ||
          freopen((dir_ + "/err").c_str(), "w", stderr) == nullptr) {
        _exit(99);
      }
      execv(argv[0], argv.data());
      _exit(98);
    }
  }

  void WaitFor(const std::string& text) {
    for (int tries = 0; tries < 2000; ++tries) {
      if (Out().find(text) != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "'" << text << "' was not said:\n" << Out() << Err();
  }

  int Wait() {
    int status = 0;
    waitpid(launch_, &status, 0);
    launch_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void ExpectNothingIsLeft() {
    for (int tries = 0; tries < 300 && ProcessesNaming(dir_) > 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(ProcessesNaming(dir_), 0);
  }

  std::string Out() const { return ReadFile(dir_ + "/out"); }
  std::string Err() const { return ReadFile(dir_ + "/err"); }

  std::string dir_;
  pid_t launch_ = -1;
};

TEST_F(LaunchTest, RanksThatFinishGiveZeroAndNoWords) {
  Start(3, {"finish"});
  EXPECT_EQ(Wait(), 0) << Err();
  EXPECT_EQ(Err(), "");
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, OneRankNeedsNoMpirun) {
  Start(1, {"finish"});
  EXPECT_EQ(Wait(), 0) << Err();
}

TEST_F(LaunchTest, TheCodeOfTheRankThatFailsIsTheJobs) {
  Start(4, {"exit", "2", "78"});
  EXPECT_EQ(Wait(), 78) << Err();
  EXPECT_THAT(Err(), HasSubstr("first failing rank  2 of 4"));
  EXPECT_THAT(Err(), HasSubstr("ended with exit code 78"));
  EXPECT_THAT(Err(), HasSubstr("--accept-change"));
  EXPECT_THAT(Err(), Not(HasSubstr("mpirun")));
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, AKilledRankIsNamedAndTheOthersEndWithIt) {
  Start(4, {"die", "1"});
  EXPECT_EQ(Wait(), 128 + SIGKILL) << Err();
  EXPECT_THAT(Err(), HasSubstr("first failing rank  1 of 4"));
  EXPECT_THAT(Err(), HasSubstr("killed by signal 9"));
  EXPECT_THAT(Err(), HasSubstr("resumes from the last checkpoint"));
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, AHungRankIsNamedByThoseWhoWaitForIt) {
  std::filesystem::create_directories(dir_ + "/incarnations/001/logs");
  std::ofstream(dir_ + "/incarnations/001/logs/rank-00002.log") << "log\n";
  Start(4, {"hang", "2"});
  EXPECT_EQ(Wait(), 74) << Err();
  EXPECT_THAT(Err(), HasSubstr("first failing rank  2 of 4"));
  EXPECT_THAT(Err(), HasSubstr("waiting for rank 2"));
  EXPECT_THAT(Err(), HasSubstr("logs/rank-00002.log"));
  EXPECT_THAT(ReadFile(dir_ + "/status.json"), HasSubstr("\"exit_code\": 74"));
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, TermAsksTheRanksToSaveAndTheir75IsTheJobs) {
  Start(3, {"loop"});
  WaitFor("looping");
  kill(launch_, SIGTERM);
  EXPECT_EQ(Wait(), 75) << Err();
  EXPECT_THAT(Err(), Not(HasSubstr("failed")));
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, TermToTheLauncherAndItsGroupIsOneWish) {
  Start(3, {"loop"});
  WaitFor("looping");
  for (int i = 0; i < 3; ++i) {
    kill(launch_, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(Wait(), 75) << Err();
}

TEST_F(LaunchTest, ASecondTermMakesTheRanksLeaveAtOnce) {
  Start(2, {"wait-for-signals"});
  WaitFor("looping");
  kill(launch_, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(launch_, SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM) << Err();
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, Usr1AsksForASaveAndTheRanksGoOn) {
  Start(3, {"loop"});
  WaitFor("looping");
  kill(launch_, SIGUSR1);
  WaitFor("saved");
  kill(launch_, SIGINT);
  EXPECT_EQ(Wait(), 75) << Err();
}

TEST_F(LaunchTest, ASignalDuringStartUpIsNotLost) {
  Start(3, {"loop"});
  kill(launch_, SIGTERM);
  const int code = Wait();
  // Before the launcher is ready it dies of it, as any program would.
  EXPECT_TRUE(code == 75 || code == 128 + SIGTERM) << code << Err();
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, TheThirdTermKillsRanksThatDoNotListen) {
  Start(2, {"stubborn"});
  WaitFor("looping");
  for (int i = 0; i < 3; ++i) {
    kill(launch_, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
  }
  EXPECT_EQ(Wait(), 128 + SIGKILL) << Err();
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, TheRanksDieWithAKilledLauncher) {
  Start(3, {"loop"});
  WaitFor("looping");
  kill(launch_, SIGKILL);
  Wait();
  ExpectNothingIsLeft();
}

TEST_F(LaunchTest, ATimeoutAsksTheRanksToLeave) {
  Start(2, {"loop"}, {"--timeout", "1.5"});
  EXPECT_EQ(Wait(), 75) << Err();
  EXPECT_THAT(Err(), HasSubstr("1.5 s are over"));
}

TEST_F(LaunchTest, ACommandThatIsNotThereIsSaid) {
  const int status = std::system((HOLDFAST_BIN_DIR
                                  "/holdfast launch -n 2 -- /nowhere/prog 2> " +
                                  dir_ + "/err")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 64);
  EXPECT_THAT(Err(), HasSubstr("/nowhere/prog: No such file or directory"));
}

}  // namespace
}  // namespace holdfast
