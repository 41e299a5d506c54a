// trainer/schedule/one_f_one_b.cc: see the header.

#include "trainer/schedule/one_f_one_b.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::trainer {
namespace {

void CheckArguments(int stages, int stage, int microbatches) {
  HF_CHECK(stages >= 1 && stage >= 0 && stage < stages && microbatches >= 1,
           "stage %d of %d, %d microbatches", stage, stages, microbatches);
}

}  // namespace

std::vector<Action> PlanOneForwardOneBackward(int stages, int stage,
                                              int microbatches) {
  CheckArguments(stages, stage, microbatches);
  using enum ActionKind;
  const bool first = stage == 0;
  const bool last = stage == stages - 1;
  const int warm_up = std::min(microbatches, stages - 1 - stage);

  std::vector<Action> actions;
  for (int mb = 0; mb < warm_up; ++mb) {
    if (!first) actions.push_back({kRecvForward, mb});
    actions.push_back({kForward, mb});
    if (!last) actions.push_back({kSendForward, mb});
  }
  if (warm_up < microbatches && !first) {
    actions.push_back({kRecvForward, warm_up});
  }
  for (int forward = warm_up; forward < microbatches; ++forward) {
    const int backward = forward - warm_up;
    actions.push_back({kForward, forward});
    if (!last) actions.push_back({kSendForwardRecvBackward, forward, backward});
    actions.push_back({kBackward, backward});
    if (first) continue;
    if (forward + 1 < microbatches) {
      actions.push_back({kSendBackwardRecvForward, backward, forward + 1});
    } else {
      actions.push_back({kSendBackward, backward});
    }
  }
  for (int mb = microbatches - warm_up; mb < microbatches; ++mb) {
    if (!last) actions.push_back({kRecvBackward, mb});
    actions.push_back({kBackward, mb});
    if (!first) actions.push_back({kSendBackward, mb});
  }
  return actions;
}

std::vector<Action> PlanForwardOnly(int stages, int stage, int microbatches) {
  CheckArguments(stages, stage, microbatches);
  using enum ActionKind;
  std::vector<Action> actions;
  for (int mb = 0; mb < microbatches; ++mb) {
    if (stage > 0) actions.push_back({kRecvForward, mb});
    actions.push_back({kForward, mb});
    if (stage < stages - 1) actions.push_back({kSendForward, mb});
  }
  return actions;
}

int MicrobatchesInFlightMax(int stages, int stage, int microbatches) {
  CheckArguments(stages, stage, microbatches);
  return std::min(microbatches, stages - stage);
}

std::string ToString(const Action& action) {
  const int mb = action.microbatch;
  switch (action.kind) {
    case ActionKind::kRecvForward:
      return absl::StrFormat("recv F%d", mb);
    case ActionKind::kForward:
      return absl::StrFormat("F%d", mb);
    case ActionKind::kSendForward:
      return absl::StrFormat("send F%d", mb);
    case ActionKind::kRecvBackward:
      return absl::StrFormat("recv B%d", mb);
    case ActionKind::kBackward:
      return absl::StrFormat("B%d", mb);
    case ActionKind::kSendBackward:
      return absl::StrFormat("send B%d", mb);
    case ActionKind::kSendForwardRecvBackward:
      return absl::StrFormat("send F%d + recv B%d", mb, action.received);
    case ActionKind::kSendBackwardRecvForward:
      return absl::StrFormat("send B%d + recv F%d", mb, action.received);
  }
  return "";
}

}  // namespace holdfast::trainer
