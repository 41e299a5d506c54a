// Real signals, each in a process of its own: handlers are for ever.

#include "trainer/fault/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

// Ends with 10 + the action asked for after these signals.
[[noreturn]] void AfterSignals(std::initializer_list<int> signals) {
  InstallSignalHandlers();
  for (const int signal : signals) raise(signal);
  usleep(1000);  // ThreadSanitizer delivers signals at calls that may block.
  _exit(10 + static_cast<int>(RequestedAction()));
}

TEST(SignalsDeathTest, WithoutASignalNothingIsAskedFor) {
  EXPECT_EXIT(AfterSignals({}), testing::ExitedWithCode(10), "");
}

TEST(SignalsDeathTest, Usr1AsksForASaveHoweverOftenItComes) {
  EXPECT_EXIT(AfterSignals({SIGUSR1}), testing::ExitedWithCode(11), "");
  EXPECT_EXIT(AfterSignals({SIGUSR1, SIGUSR1}), testing::ExitedWithCode(11),
              "");
}

TEST(SignalsDeathTest, TermAndIntAskToSaveAndLeave) {
  EXPECT_EXIT(AfterSignals({SIGTERM}), testing::ExitedWithCode(12), "");
  EXPECT_EXIT(AfterSignals({SIGINT}), testing::ExitedWithCode(12), "");
  EXPECT_EXIT(AfterSignals({SIGUSR1, SIGTERM, SIGUSR1}),
              testing::ExitedWithCode(12), "");
}

TEST(SignalsDeathTest, TheSecondOneLeavesAtOnce) {
  for (const int second : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          InstallSignalHandlers();
          raise(SIGTERM);
          usleep(1000 * (kSameWishMs + 50));
          raise(second);
          usleep(1000);
          _exit(1);
        },
        testing::ExitedWithCode(128 + second), "");
  }
}

TEST(SignalsDeathTest, TheSameWishSentTwiceIsOneWish) {
  EXPECT_EXIT(AfterSignals({SIGTERM, SIGTERM}), testing::ExitedWithCode(12),
              "");
}

TEST(SignalsDeathTest, ASignalThatCameWhileBlockedIsHeard) {
  EXPECT_EXIT(
      {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGTERM);
        sigprocmask(SIG_BLOCK, &blocked, nullptr);
        raise(SIGTERM);
        AfterSignals({});
      },
      testing::ExitedWithCode(12), "");
}

TEST(SignalsDeathTest, ASaveThatHasBegunAnswersTheRequest) {
  EXPECT_EXIT(
      {
        InstallSignalHandlers();
        raise(SIGUSR1);
        ClearSaveRequest();
        if (RequestedAction() != SignalAction::kNone) _exit(1);
        raise(SIGTERM);
        ClearSaveRequest();
        if (LeaveSignal() != SIGTERM) _exit(2);
        _exit(10 + static_cast<int>(RequestedAction()));
      },
      testing::ExitedWithCode(12), "");
}

}  // namespace
}  // namespace holdfast::trainer
