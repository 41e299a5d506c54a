// trainer/step_pipeline.cc: post, wait, compute, send.

#include "trainer/step_pipeline.h"

#include <algorithm>

#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

int BufferOf(int64_t index) {
  return static_cast<int>(index % Stage::kMessages);
}

}  // namespace

absl::StatusOr<PipelineTimes> Pipeline::Run(std::span<const Action> actions,
                                            int64_t microbatches,
                                            PipelineClient& client) {
  microbatches_ = microbatches;
  times_ = {};
  if (absl::Status status = RunAll(actions, client); !status.ok()) {
    AbandonAll();
    return status;
  }
  warm_ = warm_ ||
          std::any_of(actions.begin(), actions.end(), [](const Action& action) {
            return action.kind == ActionKind::kBackward;
          });
  return times_;
}

absl::Status Pipeline::RunAll(std::span<const Action> actions,
                              PipelineClient& client) {
  for (const Action& action : actions) {
    HF_RETURN_IF_ERROR(Do(action, client));
  }
  return FinishAll();
}

absl::Status Pipeline::Do(const Action& action, PipelineClient& client) {
  switch (action.kind) {
    case ActionKind::kRecvForward:
      return Receive(input_, action.microbatch);
    case ActionKind::kForward:
      return Forward(action.microbatch, client);
    case ActionKind::kSendForward:
      return Send(output_, action.microbatch);
    case ActionKind::kRecvBackward:
      return Receive(output_gradient_, action.microbatch);
    case ActionKind::kBackward:
      return Backward(action.microbatch, client);
    case ActionKind::kSendBackward:
      return Send(input_gradient_, action.microbatch);
    case ActionKind::kSendForwardRecvBackward:
      HF_RETURN_IF_ERROR(Send(output_, action.microbatch));
      return Receive(output_gradient_, action.received);
    case ActionKind::kSendBackwardRecvForward:
      HF_RETURN_IF_ERROR(Send(input_gradient_, action.microbatch));
      return Receive(input_, action.received);
  }
  return absl::OkStatus();
}

absl::Status Pipeline::Forward(int64_t microbatch, PipelineClient& client) {
  HF_RETURN_IF_ERROR(Finish(output_, microbatch));
  HF_ASSIGN_OR_RETURN(const Stage::Batch batch, client.BatchOf(microbatch));
  const absl::Duration start = clock_.Monotonic();
  double loss_sum = 0.0;
  HF_RETURN_IF_ERROR(stage_.Forward(static_cast<int>(microbatch % slots_),
                                    batch, BufferOf(microbatch), &loss_sum));
  times_.forward += clock_.Monotonic() - start;
  if (pp_ == nullptr || pp_->rank() == pp_->size() - 1) {
    client.OnLoss(microbatch, loss_sum);
  }
  return absl::OkStatus();
}

absl::Status Pipeline::Backward(int64_t microbatch, PipelineClient& client) {
  HF_RETURN_IF_ERROR(Finish(input_gradient_, microbatch));
  const absl::Duration start = clock_.Monotonic();
  client.BeforeBackward(microbatch);
  HF_RETURN_IF_ERROR(stage_.Backward(static_cast<int>(microbatch % slots_),
                                     BufferOf(microbatch)));
  client.AfterBackward(microbatch);
  times_.backward += clock_.Monotonic() - start;
  return absl::OkStatus();
}

absl::Status Pipeline::Receive(Lane& lane, int64_t index) {
  if (!lane.requests[BufferOf(index)].has_value()) {
    HF_RETURN_IF_ERROR(Post(lane, index));
  }
  HF_RETURN_IF_ERROR(Finish(lane, index));
  // The other buffer's message has been used up: a microbatch is computed
  // before the next one is received.
  return warm_ && index + 1 < microbatches_ ? Post(lane, index + 1)
                                            : absl::OkStatus();
}

absl::Status Pipeline::Post(Lane& lane, int64_t index) {
  const bool forward = lane.kind == Stage::Message::kInput;
  HF_ASSIGN_OR_RETURN(
      lane.requests[BufferOf(index)],
      pp_->Irecv(stage_.message(lane.kind, BufferOf(index)),
                 pp_->rank() + (forward ? -1 : 1),
                 forward ? kForwardTag : kBackwardTag, stage_.stream()));
  return absl::OkStatus();
}

absl::Status Pipeline::Send(Lane& lane, int64_t index) {
  const bool forward = lane.kind == Stage::Message::kOutput;
  HF_ASSIGN_OR_RETURN(
      lane.requests[BufferOf(index)],
      pp_->Isend(stage_.message(lane.kind, BufferOf(index)),
                 pp_->rank() + (forward ? 1 : -1),
                 forward ? kForwardTag : kBackwardTag, stage_.stream()));
  return absl::OkStatus();
}

absl::Status Pipeline::Finish(Lane& lane, int64_t index) {
  std::optional<RequestId>& request = lane.requests[BufferOf(index)];
  if (!request.has_value()) return absl::OkStatus();
  const absl::Duration start = clock_.Monotonic();
  const absl::Status status = pp_->Wait(*request, stage_.stream());
  times_.wait += clock_.Monotonic() - start;
  request.reset();
  return status;
}

absl::Status Pipeline::FinishAll() {
  absl::Status first_error;
  for (Lane* lane : {&input_, &output_, &output_gradient_, &input_gradient_}) {
    for (int64_t index = 0; index < Stage::kMessages; ++index) {
      first_error.Update(Finish(*lane, index));
    }
  }
  return first_error;
}

void Pipeline::AbandonAll() {
  for (Lane* lane : {&input_, &output_, &output_gradient_, &input_gradient_}) {
    for (std::optional<RequestId>& request : lane->requests) {
      if (request.has_value()) pp_->Abandon(*request, stage_.stream());
      request.reset();
    }
  }
}

}  // namespace holdfast::trainer
