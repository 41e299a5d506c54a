// trainer/schedule/timeline.cc: runs the lists of all stages side by side.

#include "trainer/schedule/timeline.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "trainer/schedule/one_f_one_b.h"

namespace holdfast::trainer {

double Timeline::WaitingShare() const {
  double sum = 0;
  for (const double stage : waiting) sum += stage;
  return sum / (total * static_cast<double>(waiting.size()));
}

Timeline TimeOneForwardOneBackward(const std::vector<StageTimes>& stages,
                                   int microbatches) {
  const int count = static_cast<int>(stages.size());
  HF_CHECK(count > 0 && microbatches > 0, "%d stages, %d microbatches", count,
           microbatches);
  constexpr double kNotYet = -1;
  const size_t mbs = static_cast<size_t>(microbatches);
  // When a stage's result is there.
  std::vector<std::vector<double>> forward_end(
      stages.size(), std::vector<double>(mbs, kNotYet));
  std::vector<std::vector<double>> backward_end = forward_end;

  std::vector<std::vector<Action>> lists;
  for (int stage = 0; stage < count; ++stage) {
    lists.push_back(PlanOneForwardOneBackward(count, stage, microbatches));
  }
  Timeline timeline;
  timeline.stages.resize(stages.size());
  std::vector<size_t> next(stages.size(), 0);
  std::vector<double> now(stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      for (; next[stage] < lists[stage].size(); ++next[stage]) {
        const Action& action = lists[stage][next[stage]];
        const bool is_forward = action.kind == ActionKind::kForward;
        if (!is_forward && action.kind != ActionKind::kBackward) continue;
        const size_t mb = static_cast<size_t>(action.microbatch);
        double input = 0;
        if (is_forward && stage > 0) input = forward_end[stage - 1][mb];
        if (!is_forward && stage + 1 < stages.size()) {
          input = backward_end[stage + 1][mb];
        }
        if (input == kNotYet) break;
        const double start = std::max(now[stage], input);
        const double end = start + (is_forward ? stages[stage].forward
                                               : stages[stage].backward);
        now[stage] = end;
        (is_forward ? forward_end : backward_end)[stage][mb] = end;
        timeline.stages[stage].push_back(
            {is_forward, action.microbatch, start, end});
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    HF_CHECK(next[stage] == lists[stage].size(),
             "stage %d of %d stops before '%s'", stage, count,
             ToString(lists[stage][next[stage]]));
    timeline.total = std::max(timeline.total, now[stage]);
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    timeline.waiting.push_back(
        timeline.total -
        microbatches * (stages[stage].forward + stages[stage].backward));
  }
  return timeline;
}

std::string DrawSchedule(int stages, int microbatches) {
  const Timeline timeline = TimeOneForwardOneBackward(
      std::vector<StageTimes>(static_cast<size_t>(stages)), microbatches);
  const int width =
      static_cast<int>(absl::StrFormat("F%d", microbatches - 1).size());
  std::string text;
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    absl::StrAppend(&text, absl::StrFormat("stage %d |", stage));
    int column = 0;
    const auto put = [&](const std::string& cell) {
      absl::StrAppend(&text, absl::StrFormat(" %-*s", width, cell));
      ++column;
    };
    for (const TimelineSpan& span : timeline.stages[stage]) {
      while (column < static_cast<int>(span.start)) put("..");
      put(absl::StrFormat("%c%d", span.is_forward ? 'F' : 'B',
                          span.microbatch));
    }
    while (column < static_cast<int>(timeline.total)) put("..");
    while (text.back() == ' ') text.pop_back();
    text.push_back('\n');
  }
  return text;
}

}  // namespace holdfast::trainer
