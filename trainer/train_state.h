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
#include "trainer/model/tensor_table.h"

namespace holdfast::trainer {

class TrainState {
 public:
  // `layout` is of BuildTensorTable(model, tp) and outlives the result, as does
  // `device`. `gradient_sets` >= 1. kResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<TrainState>> Create(
      const ModelTensors& tensors, const ckpt::TrainLayout& layout,
      const ckpt::Coordinates& at, int gradient_sets, kernels::Device& device);

  // Initial masters of the owned blocks (trainer/model/init.h), moments zero,
  // and the weights of the owned blocks. The other blocks' weights come by
  // StepRunner::RefreshWeights.
  void Initialise(const ModelConfig& model, uint64_t seed);

  // By ckpt::TrainRegion.
  const std::array<kernels::Buffer, 4>& regions() const { return regions_; }

  const ckpt::TrainLayout& layout() const { return layout_; }
  const ckpt::Coordinates& at() const { return at_; }
  const std::vector<ckpt::LocalTensor>& tensors() const { return local_; }
  ckpt::BlockRange owned() const { return owned_; }
  int64_t block_count() const { return block_count_; }

  // Bytes of one weight.
  int weight_bytes() const { return weight_bytes_; }

  // --- Gradients
  int gradient_sets() const { return static_cast<int>(gradients_.size()); }
  // Of one set: all local blocks, then the second accumulator if there is one.
  int64_t gradient_elements() const { return gradient_elements_; }
  float* gradients(int set) const { return gradients_[set].as<float>(); }

  // The head's accumulator in a tied model, as a range of a gradient set:
  // after the local blocks when PP is 1, the tied copy's blocks on the last
  // stage of several. count 0 on other ranks and in untied models.
  ckpt::BlockRange tied_head_blocks() const { return tied_head_blocks_; }
  // The tied table's blocks where they are updated: the first stage. count 0
  // elsewhere and in untied models.
  ckpt::BlockRange tied_table_blocks() const { return tied_table_blocks_; }

  // First element of local tensor `index` in the weight region and in a
  // gradient set.
  int64_t element_offset(int index) const {
    return local_[index].first_block * ckpt::kBlockElements;
  }
  // Index into tensors() of tensor `table_index` of the tensor table, or -1.
  int LocalIndexOf(int table_index) const;

 private:
  TrainState(const ckpt::TrainLayout& layout, const ckpt::Coordinates& at);

  const ckpt::TrainLayout& layout_;
  const ckpt::Coordinates at_;
  std::vector<ckpt::LocalTensor> local_;
  ckpt::BlockRange owned_;
  int64_t block_count_ = 0;
  int weight_bytes_ = 0;
  int64_t gradient_elements_ = 0;
  ckpt::BlockRange tied_head_blocks_;
  ckpt::BlockRange tied_table_blocks_;
  std::array<kernels::OwnedBuffer, 4> owned_regions_;
  std::array<kernels::Buffer, 4> regions_;
  std::vector<kernels::OwnedBuffer> gradients_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_TRAIN_STATE_H_
