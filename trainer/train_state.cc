// trainer/train_state.cc: allocation, offsets, first values.

#include "trainer/train_state.h"

#include <algorithm>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"
#include "trainer/model/init.h"

namespace holdfast::trainer {

using ckpt::kBlockElements;
using kernels::Bf16;
using kernels::MemorySpace;

TrainStateShape TrainStateShape::Of(const ckpt::TrainLayout& layout,
                                    const ckpt::Coordinates& at) {
  const ckpt::Mesh& mesh = layout.mesh();
  TrainStateShape shape;
  shape.block_count = layout.BlockCount(at.tp, at.pp);
  shape.owned = layout.OwnedBlocks(at.tp, at.pp, at.dp);
  shape.weight_bytes = ckpt::SizeOf(layout.options().weight_dtype);
  shape.gradient_blocks = shape.block_count;
  for (const ckpt::LocalTensor& local : layout.TensorsOf(at.tp, at.pp)) {
    if (!layout.tensors()[local.tensor].tied_to_last_stage) continue;
    const ckpt::BlockRange blocks{local.first_block, local.block_count};
    if (local.updated_here) shape.tied_table_blocks = blocks;
    if (!local.updated_here) {
      shape.tied_head_blocks = blocks;
    } else if (mesh.pp == 1) {
      shape.tied_head_blocks = {shape.block_count, local.block_count};
      shape.gradient_blocks += local.block_count;
    }
  }
  return shape;
}

TrainState::TrainState(const ModelTensors& tensors,
                       const ckpt::TrainLayout& layout,
                       const ckpt::Coordinates& at, kernels::Device& device)
    : layout_(layout),
      at_(at),
      local_(layout.TensorsOf(at.tp, at.pp)),
      shape_(TrainStateShape::Of(layout, at)),
      device_(device),
      stream_(device.NewStream()) {
  local_index_.assign(tensors.specs.size(), -1);
  for (size_t i = 0; i < local_.size(); ++i) {
    local_index_[local_[i].tensor] = static_cast<int>(i);
  }
}

absl::StatusOr<std::unique_ptr<TrainState>> TrainState::Create(
    const ModelTensors& tensors, const ckpt::TrainLayout& layout,
    const ckpt::Coordinates& at, int gradient_sets, kernels::Device& device) {
  HF_CHECK(gradient_sets >= 1, "%d gradient sets", gradient_sets);
  auto state =
      std::unique_ptr<TrainState>(new TrainState(tensors, layout, at, device));
  const TrainStateShape& shape = state->shape_;
  for (uint32_t region = 0; region < kRegions; ++region) {
    HF_ASSIGN_OR_RETURN(
        state->owned_regions_[region],
        kernels::AllocateOwned(device, MemorySpace::kDevice,
                               static_cast<size_t>(shape.RegionBytes(region))));
    state->regions_[region] = state->owned_regions_[region].buffer();
  }
  for (int set = 0; set < gradient_sets; ++set) {
    HF_ASSIGN_OR_RETURN(
        kernels::OwnedBuffer buffer,
        kernels::AllocateOwned(device, MemorySpace::kDevice,
                               static_cast<size_t>(shape.GradientBytes())));
    state->gradients_.push_back(std::move(buffer));
  }
  return state;
}

absl::Status TrainState::Initialise(const ModelConfig& model, uint64_t seed) {
  // Through the host, a piece at a time: the device's memory may be closed.
  constexpr int64_t kPieceBlocks = 512;  // 4 MiB
  HF_ASSIGN_OR_RETURN(
      const kernels::OwnedBuffer piece,
      kernels::AllocateOwned(device_, MemorySpace::kPinned,
                             kPieceBlocks * kBlockElements * sizeof(float)));
  const int64_t owned_end = shape_.owned.first + shape_.owned.count;
  for (const ckpt::LocalTensor& local : local_) {
    if (!local.updated_here) continue;
    const int64_t end =
        std::min(local.first_block + local.block_count, owned_end);
    int64_t block = std::max(local.first_block, shape_.owned.first);
    while (block < end) {
      const int64_t count = std::min(kPieceBlocks, end - block);
      FillPiece(model, seed, local, block, count, piece.as<float>());
      const size_t bytes =
          static_cast<size_t>(count) * kBlockElements * sizeof(float);
      const size_t offset = static_cast<size_t>(block - shape_.owned.first) *
                            kBlockElements * sizeof(float);
      device_.Copy(regions_[ckpt::kMasterRegion].Part(offset, bytes),
                   piece.buffer().Part(0, bytes), *stream_);
      device_.Sync(*stream_);
      block += count;
    }
  }
  const int64_t elements = shape_.owned.count * kBlockElements;
  for (const ckpt::TrainRegion region :
       {ckpt::kExpAvgRegion, ckpt::kExpAvgSqRegion}) {
    kernels::Zero(*stream_, regions_[region].as<float>(), elements);
  }
  const float* const master = regions_[ckpt::kMasterRegion].as<float>();
  const int64_t first = shape_.owned.first * kBlockElements;
  const kernels::Buffer& weight = regions_[ckpt::kWeightRegion];
  if (shape_.weight_bytes == sizeof(Bf16)) {
    kernels::Cast(*stream_, master, weight.as<Bf16>() + first, elements);
  } else {
    kernels::Cast(*stream_, master, weight.as<float>() + first, elements);
  }
  device_.Sync(*stream_);
  return device_.status();
}

// Blocks [block, block + count) of one tensor: values, then zeros for the
// vocabulary's pad rows and the end of the last block.
void TrainState::FillPiece(const ModelConfig& model, uint64_t seed,
                           const ckpt::LocalTensor& local, int64_t block,
                           int64_t count, float* piece) const {
  const ckpt::TensorSpec& spec = layout_.tensors()[local.tensor];
  const int64_t first = (block - local.first_block) * kBlockElements;
  const int64_t values =
      std::clamp<int64_t>(local.elements - first, 0, count * kBlockElements);
  float* out = piece;
  if (values > 0) {
    for (const ckpt::Box& box : ckpt::BoxesOfRun(local.part, first, values)) {
      InitialValues(model, seed, spec, box, out);
      out += box.elements();
    }
  }
  std::fill(out, piece + count * kBlockElements, 0.0f);
}

StageOffsets TrainState::StageOffsetsOf(const ModelTensors& tensors) const {
  const auto offset = [&](int tensor) {
    const int index = local_index_[tensor];
    return index < 0 ? int64_t{-1} : local_[index].first_block * kBlockElements;
  };
  StageOffsets offsets;
  offsets.embedding = at_.pp == 0 ? offset(tensors.embedding) : -1;
  for (const LayerTensors& layer : tensors.layers) {
    if (local_index_[layer.q] < 0) continue;
    offsets.layers.push_back({.input_norm = offset(layer.input_norm),
                              .q = offset(layer.q),
                              .k = offset(layer.k),
                              .v = offset(layer.v),
                              .o = offset(layer.o),
                              .post_norm = offset(layer.post_norm),
                              .gate = offset(layer.gate),
                              .up = offset(layer.up),
                              .down = offset(layer.down)});
  }
  if (at_.pp == layout_.mesh().pp - 1) {
    offsets.final_norm = offset(tensors.final_norm);
    offsets.head_weight = offset(tensors.head);
    offsets.head_gradient = shape_.tied_head_blocks.count > 0
                                ? shape_.tied_head_blocks.first * kBlockElements
                                : offset(tensors.head);
  }
  return offsets;
}

}  // namespace holdfast::trainer
