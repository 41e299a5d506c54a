// trainer/step_pipeline.h: runs a stage's list of actions: forward, backward,
// and the messages to and from the neighbour stages.
//
// Each direction has two message buffers, so that a microbatch travels while
// the next one is computed: a receive is posted one microbatch ahead, a send is
// waited for when its buffer is needed again. That only moves waits to later
// than the list has them, so what the list proves about deadlock holds.
//
// Thread: the step thread. Allocates nothing after the constructor.

#ifndef HOLDFAST_TRAINER_STEP_PIPELINE_H_
#define HOLDFAST_TRAINER_STEP_PIPELINE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "trainer/model/stage.h"
#include "trainer/parallel/device_collectives.h"
#include "trainer/schedule/one_f_one_b.h"

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

// Time of one run, as the step thread passes it: where the device works on its
// own, a wait for it counts where it happens. Waiting is for messages of the
// neighbours; joining leaves counts as backward.
struct PipelineTimes {
  absl::Duration forward, backward, wait;
};

class Pipeline {
 public:
  // Messages of equal tag arrive in order, so a direction needs one tag.
  static constexpr int kForwardTag = 0;
  static constexpr int kBackwardTag = 1;

  // `pp` may be null when the stage is both first and last. All outlive this.
  // `slots` as the stage has.
  Pipeline(Stage& stage, DeviceCollectives* pp, int slots,
           const ckpt::Clock& clock)
      : stage_(stage), pp_(pp), slots_(slots), clock_(clock) {}

  // `actions` are a plan of trainer/schedule for `microbatches`. After an error
  // messages that were on the way are abandoned, since waiting for them might
  // take for ever: the job must end.
  absl::StatusOr<PipelineTimes> Run(std::span<const Action> actions,
                                    int64_t microbatches,
                                    PipelineClient& client);

 private:
  // Messages of one kind on the way: message i uses buffer i % kMessages.
  struct Lane {
    Stage::Message kind;
    std::array<std::optional<RequestId>, Stage::kMessages> requests = {};
  };

  absl::Status RunAll(std::span<const Action> actions, PipelineClient& client);
  absl::Status Do(const Action& action, PipelineClient& client);
  absl::Status Forward(int64_t microbatch, PipelineClient& client);
  absl::Status Backward(int64_t microbatch, PipelineClient& client);
  absl::Status Receive(Lane& lane, int64_t index);
  absl::Status Post(Lane& lane, int64_t index);
  absl::Status Send(Lane& lane, int64_t index);
  // Waits for what is on the way in the buffer of message `index`.
  absl::Status Finish(Lane& lane, int64_t index);
  absl::Status FinishAll();
  void AbandonAll();

  Stage& stage_;
  DeviceCollectives* const pp_;
  const int slots_;
  const ckpt::Clock& clock_;

  Lane input_{Stage::Message::kInput};
  Lane output_{Stage::Message::kOutput};
  Lane output_gradient_{Stage::Message::kOutputGradient};
  Lane input_gradient_{Stage::Message::kInputGradient};
  int64_t microbatches_ = 0;
  // Whether messages are received ahead: not before a whole step has run. A GPU
  // loads a kernel's code at its first launch, and may wait for all that runs
  // then: also for a message that the other rank sends only after this launch.
  bool warm_ = false;
  PipelineTimes times_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_PIPELINE_H_
