// trainer/schedule/timeline.h: when each stage of a pipeline computes and when
// it waits, from the lists of actions and the time of each stage. Pure.

#ifndef HOLDFAST_TRAINER_SCHEDULE_TIMELINE_H_
#define HOLDFAST_TRAINER_SCHEDULE_TIMELINE_H_

#include <string>
#include <vector>

namespace holdfast::trainer {

// One microbatch on one stage; any unit of time.
struct StageTimes {
  double forward = 1;
  double backward = 1;
};

struct TimelineSpan {
  bool is_forward = true;
  int microbatch = 0;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::vector<std::vector<TimelineSpan>> stages;  // In order of time.
  double total = 0;                               // Until the last stage ends.
  std::vector<double> waiting;                    // By stage, of `total`.

  // Share of the time that all stages together wait. With equal stages that is
  // (p - 1) / (m + p - 1).
  double WaitingShare() const;
};

// 1F1B over stages.size() stages. Messages take no time and need no hand of the
// sender.
Timeline TimeOneForwardOneBackward(const std::vector<StageTimes>& stages,
                                   int microbatches);

// Each stage a line, each unit of time a column of two characters, equal
// stages, a backward as long as a forward; ".." is waiting.
std::string DrawSchedule(int stages, int microbatches);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_SCHEDULE_TIMELINE_H_
