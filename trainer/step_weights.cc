// trainer/step_weights.cc: all-gather over DP, then the tied copy.

#include "trainer/step_weights.h"

#include <algorithm>
#include <span>

#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

constexpr int kTiedWeightTag = 2;  // 0 and 1: step_pipeline.cc

}  // namespace

std::vector<ckpt::BlockRange> TiedShares(const ckpt::TrainLayout& layout,
                                         int tp) {
  const ckpt::BlockRange table =
      TrainStateShape::Of(layout, {.tp = tp}).tied_table_blocks;
  std::vector<ckpt::BlockRange> shares;
  if (table.count == 0) return shares;
  for (int dp = 0; dp < layout.mesh().dp; ++dp) {
    const ckpt::BlockRange owned = layout.OwnedBlocks(tp, /*pp=*/0, dp);
    const int64_t first =
        std::clamp(owned.first, table.first, table.first + table.count);
    const int64_t end = std::clamp(owned.first + owned.count, table.first,
                                   table.first + table.count);
    shares.push_back({first - table.first, end - first});
  }
  return shares;
}

absl::StatusOr<WeightExchange> WeightExchange::Create(MeshCollectives& mesh,
                                                      const TrainState& state,
                                                      kernels::Device& device,
                                                      kernels::Stream& stream,
                                                      bool staged) {
  const ckpt::TrainLayout& layout = state.layout();
  const ckpt::Coordinates& at = state.at();
  const int64_t block_bytes = ckpt::kBlockElements * state.shape().weight_bytes;
  WeightExchange exchange;
  exchange.mesh_ = &mesh;
  for (int dp = 0; dp < layout.mesh().dp; ++dp) {
    const ckpt::BlockRange owned = layout.OwnedBlocks(at.tp, at.pp, dp);
    exchange.owned_.first.push_back(owned.first * block_bytes);
    exchange.owned_.count.push_back(owned.count * block_bytes);
  }
  const bool first = at.pp == 0;
  const bool last = at.pp == layout.mesh().pp - 1;
  if (first != last) {
    const int64_t base = first ? state.shape().tied_table_blocks.first
                               : state.shape().tied_head_blocks.first;
    for (const ckpt::BlockRange& share : TiedShares(layout, at.tp)) {
      exchange.tied_.first.push_back((base + share.first) * block_bytes);
      exchange.tied_.count.push_back(share.count * block_bytes);
    }
  }
  HF_ASSIGN_OR_RETURN(
      exchange.weights_,
      Mirror::Create(device, stream, state.regions()[ckpt::kWeightRegion],
                     staged));
  return exchange;
}

absl::Status WeightExchange::GatherShares(const Shares& shares) {
  if (mesh_->mesh.dp == 1) return absl::OkStatus();
  return mesh_->dp->AllGatherV({weights_.data(), weights_.bytes()},
                               shares.first, shares.count);
}

absl::Status WeightExchange::Run() {
  const int dp = mesh_->at.dp;
  weights_.Download(owned_.first[dp], owned_.count[dp]);
  HF_RETURN_IF_ERROR(GatherShares(owned_));
  if (!tied_.first.empty()) {
    const std::span<std::byte> share(weights_.data() + tied_.first[dp],
                                     static_cast<size_t>(tied_.count[dp]));
    Collectives& pp = *mesh_->pp;
    const bool sends = mesh_->at.pp == 0;
    if (!share.empty()) {
      HF_ASSIGN_OR_RETURN(const RequestId request,
                          sends ? pp.Isend(share, pp.size() - 1, kTiedWeightTag)
                                : pp.Irecv(share, 0, kTiedWeightTag));
      HF_RETURN_IF_ERROR(pp.Wait(request));
    }
    if (!sends) HF_RETURN_IF_ERROR(GatherShares(tied_));
  }
  // The owned blocks are there already, and a save may be reading them.
  const auto owned_first = static_cast<size_t>(owned_.first[dp]);
  const auto owned_end = owned_first + static_cast<size_t>(owned_.count[dp]);
  weights_.Upload(0, owned_first);
  weights_.Upload(owned_end, weights_.bytes() - owned_end);
  return absl::OkStatus();
}

}  // namespace holdfast::trainer
