// trainer/step_pipeline.cc: post, wait, compute, send.

#include "trainer/step_pipeline.h"

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

// Messages of equal tag arrive in order, so a direction needs one tag.
constexpr int kForwardTag = 0;
constexpr int kBackwardTag = 1;

int BufferOf(int64_t index) {
  return static_cast<int>(index % Stage::kMessages);
}

}  // namespace

Pipeline::Pipeline(Stage& stage, Collectives* pp, int slots,
                   const ckpt::Clock& clock)
    : stage_(stage), pp_(pp), slots_(slots), clock_(clock) {}

absl::StatusOr<PipelineTimes> Pipeline::Run(
    std::span<const ScheduleAction> actions, int64_t microbatches,
    PipelineClient& client) {
  microbatches_ = microbatches;
  times_ = {};
  absl::Status status = absl::OkStatus();
  if (!first()) status = Post(input_, 0, microbatches);
  if (status.ok() && !last()) {
    status = Post(output_gradient_, 0,
                  actions.size() > microbatches ? microbatches : 0);
  }
  for (const ScheduleAction& action : actions) {
    if (!status.ok()) break;
    status = action.kind == ScheduleAction::Kind::kForward
                 ? Forward(action.microbatch, client)
                 : Backward(action.microbatch, client);
  }
  const absl::Status finished = FinishAll();
  if (!status.ok()) return status;
  HF_RETURN_IF_ERROR(finished);
  return times_;
}

absl::Status Pipeline::Forward(int64_t microbatch, PipelineClient& client) {
  if (!first()) {
    HF_RETURN_IF_ERROR(Finish(input_, microbatch));
    HF_RETURN_IF_ERROR(Post(input_, microbatch + 1, microbatches_));
  }
  if (!last()) HF_RETURN_IF_ERROR(Finish(output_, microbatch));
  HF_ASSIGN_OR_RETURN(const Stage::Batch batch, client.BatchOf(microbatch));
  const absl::Duration start = clock_.Monotonic();
  double loss_sum = 0.0;
  HF_RETURN_IF_ERROR(stage_.Forward(static_cast<int>(microbatch % slots_),
                                    batch, BufferOf(microbatch), &loss_sum));
  times_.forward += clock_.Monotonic() - start;
  if (last()) {
    client.OnLoss(microbatch, loss_sum);
    return absl::OkStatus();
  }
  return Send(output_, microbatch);
}

absl::Status Pipeline::Backward(int64_t microbatch, PipelineClient& client) {
  if (!last()) {
    HF_RETURN_IF_ERROR(Finish(output_gradient_, microbatch));
    HF_RETURN_IF_ERROR(Post(output_gradient_, microbatch + 1, microbatches_));
  }
  if (!first()) HF_RETURN_IF_ERROR(Finish(input_gradient_, microbatch));
  client.BeforeBackward(microbatch);
  const absl::Duration start = clock_.Monotonic();
  HF_RETURN_IF_ERROR(stage_.Backward(static_cast<int>(microbatch % slots_),
                                     BufferOf(microbatch)));
  client.AfterBackward(microbatch);
  times_.backward += clock_.Monotonic() - start;
  if (first()) return absl::OkStatus();
  return Send(input_gradient_, microbatch);
}

absl::Status Pipeline::Post(Lane& lane, int64_t index, int64_t count) {
  if (index >= count) return absl::OkStatus();
  Request& request = lane.requests[BufferOf(index)];
  HF_CHECK(!request.has_value(), "message %d is posted onto another one",
           index);
  const bool forward = lane.kind == Stage::Message::kInput;
  HF_ASSIGN_OR_RETURN(request,
                      pp_->Irecv(stage_.message(lane.kind, BufferOf(index)),
                                 pp_->rank() + (forward ? -1 : 1),
                                 forward ? kForwardTag : kBackwardTag));
  return absl::OkStatus();
}

absl::Status Pipeline::Send(Lane& lane, int64_t index) {
  const bool forward = lane.kind == Stage::Message::kOutput;
  HF_ASSIGN_OR_RETURN(lane.requests[BufferOf(index)],
                      pp_->Isend(stage_.message(lane.kind, BufferOf(index)),
                                 pp_->rank() + (forward ? 1 : -1),
                                 forward ? kForwardTag : kBackwardTag));
  return absl::OkStatus();
}

absl::Status Pipeline::Finish(Lane& lane, int64_t index) {
  Request& request = lane.requests[BufferOf(index)];
  if (!request.has_value()) return absl::OkStatus();
  const absl::Duration start = clock_.Monotonic();
  const absl::Status status = pp_->Wait(*request);
  times_.wait += clock_.Monotonic() - start;
  request.reset();
  return status;
}

absl::Status Pipeline::FinishAll() {
  absl::Status first_error = absl::OkStatus();
  for (Lane* lane : {&input_, &output_, &output_gradient_, &input_gradient_}) {
    for (int64_t index = 0; index < Stage::kMessages; ++index) {
      first_error.Update(Finish(*lane, index));
    }
  }
  return first_error;
}

}  // namespace holdfast::trainer
