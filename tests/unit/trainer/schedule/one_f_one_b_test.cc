// The lists of 1F1B: the plan's worked example, how many microbatches are in
// flight, and that the lists of all stages end even where no send is buffered.

#include "trainer/schedule/one_f_one_b.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/schedule/timeline.h"

namespace holdfast::trainer {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

std::vector<std::string> Words(const std::vector<Action>& actions) {
  std::vector<std::string> words;
  for (const Action& action : actions) words.push_back(ToString(action));
  return words;
}

TEST(OneForwardOneBackwardTest,
     TheWorkedExampleOfTwoStagesAndThreeMicrobatches) {
  EXPECT_THAT(Words(PlanOneForwardOneBackward(2, 0, 3)),
              ElementsAre("F0", "send F0", "F1", "send F1 + recv B0", "B0",
                          "F2", "send F2 + recv B1", "B1", "recv B2", "B2"));
  EXPECT_THAT(Words(PlanOneForwardOneBackward(2, 1, 3)),
              ElementsAre("recv F0", "F0", "B0", "send B0 + recv F1", "F1",
                          "B1", "send B1 + recv F2", "F2", "B2", "send B2"));
  EXPECT_EQ(DrawSchedule(2, 3),
            "stage 0 | F0 F1 .. B0 F2 B1 .. B2\n"
            "stage 1 | .. F0 B0 F1 B1 F2 B2 ..\n");
}

TEST(OneForwardOneBackwardTest, OneStageNeverSendsAnything) {
  EXPECT_THAT(Words(PlanOneForwardOneBackward(1, 0, 2)),
              ElementsAre("F0", "B0", "F1", "B1"));
}

TEST(OneForwardOneBackwardTest, FewerMicrobatchesThanStagesStillRunInOrder) {
  EXPECT_EQ(DrawSchedule(3, 1),
            "stage 0 | F0 .. .. .. .. B0\n"
            "stage 1 | .. F0 .. .. B0 ..\n"
            "stage 2 | .. .. F0 B0 .. ..\n");
}

TEST(OneForwardOneBackwardTest, EachMicrobatchGoesForwardAndBackOnceInOrder) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (int stage = 0; stage < p; ++stage) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << " of " << p << ", " << m);
        int forwards = 0;
        int backwards = 0;
        int most_in_flight = 0;
        for (const Action& action : PlanOneForwardOneBackward(p, stage, m)) {
          if (action.kind == ActionKind::kForward) {
            ASSERT_EQ(action.microbatch, forwards++);
          }
          if (action.kind == ActionKind::kBackward) {
            ASSERT_EQ(action.microbatch, backwards++);
          }
          ASSERT_LE(backwards, forwards);
          most_in_flight = std::max(most_in_flight, forwards - backwards);
        }
        EXPECT_EQ(forwards, m);
        EXPECT_EQ(backwards, m);
        EXPECT_EQ(most_in_flight, std::min(m, p - stage));
        EXPECT_EQ(MicrobatchesInFlightMax(p, stage, m), std::min(m, p - stage));
      }
    }
  }
}

// One half of an action that needs a neighbour.
struct Half {
  bool is_send = false;
  bool is_forward = false;
  int microbatch = 0;
  int neighbour = 0;
};

std::vector<Half> HalvesOf(const Action& action, int stage) {
  const int mb = action.microbatch;
  switch (action.kind) {
    case ActionKind::kRecvForward:
      return {{false, true, mb, stage - 1}};
    case ActionKind::kSendForward:
      return {{true, true, mb, stage + 1}};
    case ActionKind::kRecvBackward:
      return {{false, false, mb, stage + 1}};
    case ActionKind::kSendBackward:
      return {{true, false, mb, stage - 1}};
    case ActionKind::kSendForwardRecvBackward:
      return {{true, true, mb, stage + 1},
              {false, false, action.received, stage + 1}};
    case ActionKind::kSendBackwardRecvForward:
      return {{true, false, mb, stage - 1},
              {false, true, action.received, stage - 1}};
    case ActionKind::kForward:
    case ActionKind::kBackward:
      return {};
  }
  return {};
}

// Runs the lists with rendezvous only: a send is over when the neighbour takes
// it in the action that it is in now. Returns where each stage stopped.
std::vector<size_t> RunUnbuffered(
    const std::vector<std::vector<Action>>& lists) {
  const int p = static_cast<int>(lists.size());
  std::vector<size_t> next(lists.size(), 0);
  std::vector<std::vector<Half>> open(lists.size());
  const auto enter = [&](int stage) {
    while (next[stage] < lists[stage].size()) {
      open[stage] = HalvesOf(lists[stage][next[stage]], stage);
      if (!open[stage].empty()) return;
      ++next[stage];  // Computes.
    }
  };
  for (int stage = 0; stage < p; ++stage) enter(stage);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < p; ++stage) {
      for (size_t i = 0; i < open[stage].size(); ++i) {
        const Half half = open[stage][i];
        if (half.neighbour < 0 || half.neighbour >= p) return next;
        auto& others = open[half.neighbour];
        const auto match =
            std::find_if(others.begin(), others.end(), [&](const Half& other) {
              return other.neighbour == stage &&
                     other.is_send != half.is_send &&
                     other.is_forward == half.is_forward &&
                     other.microbatch == half.microbatch;
            });
        if (match == others.end()) continue;
        others.erase(match);
        open[stage].erase(open[stage].begin() + static_cast<long>(i));
        moved = true;
        for (const int freed : {stage, half.neighbour}) {
          if (open[freed].empty() && next[freed] < lists[freed].size()) {
            ++next[freed];
            enter(freed);
          }
        }
        break;
      }
    }
  }
  return next;
}

TEST(OneForwardOneBackwardTest, NoStageWaitsForEverEvenWithoutBuffers) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      std::vector<std::vector<Action>> lists;
      for (int stage = 0; stage < p; ++stage) {
        lists.push_back(PlanOneForwardOneBackward(p, stage, m));
      }
      const std::vector<size_t> stopped = RunUnbuffered(lists);
      for (int stage = 0; stage < p; ++stage) {
        EXPECT_EQ(stopped[stage], lists[stage].size())
            << "stage " << stage << " of " << p << ", " << m << " microbatches";
      }
    }
  }
}

// The proof above must be able to fail: with the exchanges taken apart, both
// neighbours send first and wait for ever.
TEST(OneForwardOneBackwardTest, ExchangesTakenApartWouldDeadlock) {
  std::vector<std::vector<Action>> lists;
  for (int stage = 0; stage < 2; ++stage) {
    std::vector<Action> apart;
    for (const Action& action : PlanOneForwardOneBackward(2, stage, 3)) {
      if (action.kind == ActionKind::kSendForwardRecvBackward) {
        apart.push_back({ActionKind::kSendForward, action.microbatch});
        apart.push_back({ActionKind::kRecvBackward, action.received});
      } else if (action.kind == ActionKind::kSendBackwardRecvForward) {
        apart.push_back({ActionKind::kSendBackward, action.microbatch});
        apart.push_back({ActionKind::kRecvForward, action.received});
      } else {
        apart.push_back(action);
      }
    }
    lists.push_back(std::move(apart));
  }
  EXPECT_LT(RunUnbuffered(lists)[0], lists[0].size());
}

TEST(OneForwardOneBackwardTest, ForwardOnlyKeepsTheOrderOfMicrobatches) {
  EXPECT_THAT(
      Words(PlanForwardOnly(3, 1, 2)),
      ElementsAre("recv F0", "F0", "send F0", "recv F1", "F1", "send F1"));
  std::vector<std::vector<Action>> lists;
  for (int stage = 0; stage < 3; ++stage) {
    lists.push_back(PlanForwardOnly(3, stage, 5));
  }
  EXPECT_EQ(RunUnbuffered(lists)[2], lists[2].size());
}

TEST(TimelineTest, TheBubbleOfEqualStagesIsThePlansFigure) {
  // MISSION's table: 8 stages.
  for (const auto& [m, percent] :
       std::vector<std::pair<int, double>>{{32, 17.9}, {24, 22.6}, {64, 9.9}}) {
    const Timeline timeline = TimeOneForwardOneBackward(
        std::vector<StageTimes>(8, StageTimes{1, 2}), m);
    EXPECT_THAT(100 * timeline.WaitingShare(), DoubleNear(percent, 0.05)) << m;
    EXPECT_DOUBLE_EQ(timeline.WaitingShare(), 7.0 / (m + 7)) << m;
    EXPECT_DOUBLE_EQ(timeline.total, 3.0 * (m + 7));
  }
}

TEST(TimelineTest, AHeavyLastStageMakesTheOthersWait) {
  std::vector<StageTimes> stages(4, StageTimes{1, 2});
  stages[3] = {2, 4};
  const Timeline timeline = TimeOneForwardOneBackward(stages, 16);
  EXPECT_GE(timeline.total, 16 * 6 + 3);
  EXPECT_GT(timeline.waiting[0], timeline.waiting[3]);
}

}  // namespace
}  // namespace holdfast::trainer
