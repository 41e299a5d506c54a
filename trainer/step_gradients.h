// trainer/step_gradients.h: from the finished subtrees of every DP member to
// one gradient for each owned block, and the squares for its norm.
//
// A tied table has two accumulators, one for the embedding and one for the
// head. Each goes over the DP tree by itself, in the shares in which the first
// stage owns the table; then the head's part goes from the last stage to the
// first and is added once. So the additions are the same at every PP and DP.
//
// Thread: the step thread. Allocates in Create only.

#ifndef HOLDFAST_TRAINER_STEP_GRADIENTS_H_
#define HOLDFAST_TRAINER_STEP_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/optim/sharded_adamw.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/exact_sum.h"
#include "trainer/parallel/gradient_reduce.h"
#include "trainer/step_plan.h"
#include "trainer/train_state.h"

namespace holdfast::trainer {

class GradientExchange {
 public:
  // Elements of one message of the head's gradient: 1 MiB.
  static constexpr int64_t kTiedChunk = 256 * 1024;

  // Bytes that Create allocates on `rank`'s place in `plan`; pure.
  static int64_t BufferBytes(const StepPlan& plan,
                             const ckpt::TrainLayout& layout);

  // Of the messages of one exchange over DP, in and out; pure.
  static int64_t MessageBytes(const StepPlan& plan,
                              const ckpt::TrainLayout& layout);

  // All outlive the result.
  static absl::StatusOr<std::unique_ptr<GradientExchange>> Create(
      DeviceMesh& mesh, const TrainState& state, const StepPlan& plan,
      kernels::Device& device, kernels::Stream& stream);

  // Elements `range` of the pieces of the local join are finished on the
  // stream: begins their way to the owners beside it. Collective. The ranges of
  // a step do not overlap; with none, all is left to Reduce, and else they
  // cover the local blocks.
  absl::Status ReduceBeside(const ElementRange& range);

  // The pieces of the local join are finished on the stream; afterwards owned()
  // is. Collective.
  absl::Status Reduce();

  // The gradient of the owned blocks, on the device.
  const float* owned() const { return owned_; }

  // Adds the squares of the owned gradients, block by block, to `sum`: every
  // element of the model once over all ranks. `runs` as from OwnedRuns. Waits
  // for the stream.
  absl::Status AddSquares(std::span<const OwnedRun> runs, ExactSum& sum);

  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  GradientExchange(DeviceMesh& mesh, const TrainState& state,
                   kernels::Device& device, kernels::Stream& stream)
      : mesh_(mesh), state_(state), device_(device), stream_(stream) {}

  absl::Status Open(const StepPlan& plan);
  absl::Status JoinTied();
  absl::Status SendTied(std::span<float> head);
  absl::Status ReceiveTied(std::span<float> table);

  DeviceMesh& mesh_;
  const TrainState& state_;
  kernels::Device& device_;
  kernels::Stream& stream_;

  std::vector<std::span<float>> pieces_;  // gradient sets; device memory
  std::unique_ptr<GradientReducer> blocks_;
  std::unique_ptr<GradientReducer> head_;  // null where there is no tied head
  std::span<float> owned_share_;           // this member's, in pieces_[0]
  std::span<float> head_share_;            // this member's, in pieces_[0]
  std::span<float> table_share_;           // this member's, in owned_share_
  const float* owned_ = nullptr;
  kernels::OwnedBuffer chunk_;    // of the head's gradient, received
  kernels::OwnedBuffer squares_;  // kSquareBlocks of FP64
  int64_t buffer_bytes_ = 0;
  int64_t beside_elements_ = 0;              // in this step
  std::unique_ptr<kernels::Stream> beside_;  // of ReduceBeside
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_GRADIENTS_H_
