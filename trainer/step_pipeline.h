// trainer/step_pipeline.h: a stage's list of actions, run: messages to and from
// the neighbour stages around forward and backward.
//
// Each direction has two message buffers, so that a microbatch travels while
// the next one is computed. Receives are posted one microbatch ahead; a send is
// waited for when its buffer is needed again. No wait depends on something that
// comes later in the neighbour's list, so lists that are each in order cannot
// block each other.
//
// Thread: the step thread. Allocates nothing after the constructor.

#ifndef HOLDFAST_TRAINER_STEP_PIPELINE_H_
#define HOLDFAST_TRAINER_STEP_PIPELINE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "trainer/model/stage.h"
#include "trainer/parallel/collectives.h"
#include "trainer/schedule/schedule.h"

namespace holdfast::trainer {

// What a run asks its owner. Microbatches are this member's, from 0.
class PipelineClient {
 public:
  virtual ~PipelineClient() = default;
  virtual absl::StatusOr<Stage::Batch> BatchOf(int64_t microbatch) = 0;
  // Last stage: the sum of the losses of a forward.
  virtual void OnLoss(int64_t microbatch, double loss_sum) = 0;
  virtual void BeforeBackward(int64_t microbatch) = 0;
  virtual void AfterBackward(int64_t microbatch) = 0;
};

// Time of one run. Waiting is for messages of the neighbours.
struct PipelineTimes {
  absl::Duration forward, backward, wait;
};

class Pipeline {
 public:
  // `pp` may be null when the stage is both first and last. All outlive this.
  // `slots` as the stage has.
  Pipeline(Stage& stage, Collectives* pp, int slots, const ckpt::Clock& clock);

  // `actions` have each microbatch of [0, microbatches) forwarded once, in
  // order, and backwarded once or (evaluation) never.
  absl::StatusOr<PipelineTimes> Run(std::span<const ScheduleAction> actions,
                                    int64_t microbatches,
                                    PipelineClient& client);

 private:
  using Request = std::optional<RequestId>;
  // Messages of one kind on the way: message i uses buffer i % 2.
  struct Lane {
    Stage::Message kind;
    std::array<Request, Stage::kMessages> requests;
  };

  bool first() const { return pp_ == nullptr || pp_->rank() == 0; }
  bool last() const { return pp_ == nullptr || pp_->rank() == pp_->size() - 1; }

  absl::Status Forward(int64_t microbatch, PipelineClient& client);
  absl::Status Backward(int64_t microbatch, PipelineClient& client);
  absl::Status Post(Lane& lane, int64_t index, int64_t count);
  absl::Status Send(Lane& lane, int64_t index);
  absl::Status Finish(Lane& lane, int64_t index);
  // Waits for whatever is on the way; the first error.
  absl::Status FinishAll();

  Stage& stage_;
  Collectives* const pp_;
  const int slots_;
  const ckpt::Clock& clock_;

  Lane input_{Stage::Message::kInput, {}};
  Lane output_{Stage::Message::kOutput, {}};
  Lane output_gradient_{Stage::Message::kOutputGradient, {}};
  Lane input_gradient_{Stage::Message::kInputGradient, {}};
  int64_t microbatches_ = 0;
  PipelineTimes times_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_PIPELINE_H_
