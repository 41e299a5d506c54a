// Processes told apart.

#include "ckpt/base/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

TEST(ProcessTest, AMarkIsTheSameTwiceAndSaysWhere) {
  const ProcessMark mark = MarkOfThisProcess();
  ASSERT_FALSE(mark.empty());
  EXPECT_EQ(mark.boot.size(), 36);
  EXPECT_THAT(mark.namespaces, testing::StartsWith("pid:["));
  EXPECT_EQ(mark, MarkOfThisProcess());
  EXPECT_EQ(StartTicksOf(getpid()), mark.start_ticks);
}

TEST(ProcessTest, AnotherProcessHasAnotherAndADeadOneHasNone) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(pipes[1]);
    _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);
  }
  const auto ticks = StartTicksOf(child);
  ASSERT_TRUE(ticks.has_value());
  EXPECT_GE(*ticks, MarkOfThisProcess().start_ticks);
  close(pipes[1]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(StartTicksOf(child).has_value());
  close(pipes[0]);
}

}  // namespace
}  // namespace holdfast::ckpt
