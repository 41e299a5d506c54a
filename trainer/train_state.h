// trainer/train_state.h: the memory of one rank that outlives a step, and the
// sums that a step makes.
//
// What a resume needs is the four regions of ckpt/layout/train_layout.h, in its
// order and with its sizes, and nothing else but the numbers that trainer.cc
// keeps (the step, the data cursor): randomness is counter-based and the
// learning rate is a function of the step. Gradients live inside a step.
//
//   region        blocks         bytes of an element
//   weight        all local      2 (BF16) or 4 (FP32 compute)
//   master        owned          4
//   exp_avg       owned          4
//   exp_avg_sq    owned          4
//
// A gradient set has one FP32 accumulator for every local block; a tied model
// that has first and last stage on one rank has a second accumulator for the
// table, so that embedding and head are summed apart at every PP. Set 0 is the
// one in use; the others hold finished subtrees of leaves.
//
// Memory: allocated zeroed and page-aligned at Create, never again. Thread: the
// step thread.

#ifndef HOLDFAST_TRAINER_TRAIN_STATE_H_
#define HOLDFAST_TRAINER_TRAIN_STATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/layout/train_layout.h"
#include "kernels/device.h"
#include "trainer/model/model_config.h"
#include "trainer/model/stage.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::trainer {

// Sizes of a rank's memory, in blocks of ckpt::kBlockElements. Pure.
struct TrainStateShape {
  int64_t block_count = 0;  // All local ones.
  ckpt::BlockRange owned;   // Of them, updated by this rank.
  int weight_bytes = 0;     // Of one weight.

  // Of one gradient set: all local blocks, then the second accumulator of the
  // tied table if there is one.
  int64_t gradient_blocks = 0;
  // The head's accumulator in a tied model, as a range of a gradient set: after
  // the local blocks when PP is 1, the tied copy's blocks on the last of
  // several stages. count 0 on other ranks and in untied models.
  ckpt::BlockRange tied_head_blocks;
  // The tied table's blocks where they are updated: the first stage. count 0
  // elsewhere and in untied models.
  ckpt::BlockRange tied_table_blocks;

  static TrainStateShape Of(const ckpt::TrainLayout& layout,
                            const ckpt::Coordinates& at);

  int64_t RegionBytes(uint32_t region) const {
    return region == ckpt::kWeightRegion
               ? block_count * ckpt::kBlockElements * weight_bytes
               : owned.count * ckpt::kBlockElements * 4;
  }
  int64_t GradientBytes() const {
    return gradient_blocks * ckpt::kBlockElements * 4;
  }
};

class TrainState {
 public:
  static constexpr uint32_t kRegions = 4;

  // `layout` is of tensors.specs; it and `device` outlive the result.
  // `gradient_sets` >= 1. kResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<TrainState>> Create(
      const ModelTensors& tensors, const ckpt::TrainLayout& layout,
      const ckpt::Coordinates& at, int gradient_sets, kernels::Device& device);

  // Masters of the owned blocks (trainer/model/init.h), moments zero, and the
  // weights of the owned blocks. The others' weights come by
  // StepRunner::RefreshWeights. Allocates 4 MiB meanwhile.
  absl::Status Initialise(const ModelConfig& model, uint64_t seed);

  // By ckpt::TrainRegion.
  const std::array<kernels::Buffer, kRegions>& regions() const {
    return regions_;
  }

  const ckpt::TrainLayout& layout() const { return layout_; }
  const ckpt::Coordinates& at() const { return at_; }
  const std::vector<ckpt::LocalTensor>& tensors() const { return local_; }
  const TrainStateShape& shape() const { return shape_; }

  int gradient_sets() const { return static_cast<int>(gradients_.size()); }
  int64_t gradient_elements() const {
    return shape_.gradient_blocks * ckpt::kBlockElements;
  }
  float* gradients(int set) const { return gradients_[set].as<float>(); }
  const kernels::Buffer& gradient_buffer(int set) const {
    return gradients_[set].buffer();
  }

  // Where this rank's stage finds its tensors.
  StageOffsets StageOffsetsOf(const ModelTensors& tensors) const;

 private:
  TrainState(const ModelTensors& tensors, const ckpt::TrainLayout& layout,
             const ckpt::Coordinates& at, kernels::Device& device);
  void FillPiece(const ModelConfig& model, uint64_t seed,
                 const ckpt::LocalTensor& local, int64_t block, int64_t count,
                 float* piece) const;

  const ckpt::TrainLayout& layout_;
  const ckpt::Coordinates at_;
  const std::vector<ckpt::LocalTensor> local_;
  const TrainStateShape shape_;
  kernels::Device& device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<int> local_index_;  // by table index; -1: not here
  std::array<kernels::OwnedBuffer, kRegions> owned_regions_;
  std::array<kernels::Buffer, kRegions> regions_;
  std::vector<kernels::OwnedBuffer> gradients_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_TRAIN_STATE_H_
