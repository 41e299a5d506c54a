// trainer/step_weights.cc: all-gather over DP, then the tied copy.

#include "trainer/step_weights.h"

#include <algorithm>

#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
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

WeightExchange::WeightExchange(DeviceMesh& mesh, const TrainState& state,
                               kernels::Stream& stream)
    : mesh_(mesh),
      stream_(stream),
      weights_(state.regions()[ckpt::kWeightRegion].data,
               state.regions()[ckpt::kWeightRegion].bytes) {
  const ckpt::TrainLayout& layout = state.layout();
  const ckpt::Coordinates& at = state.at();
  const int64_t block_bytes = ckpt::kBlockElements * state.shape().weight_bytes;
  for (int dp = 0; dp < layout.mesh().dp; ++dp) {
    const ckpt::BlockRange owned = layout.OwnedBlocks(at.tp, at.pp, dp);
    owned_.first.push_back(owned.first * block_bytes);
    owned_.count.push_back(owned.count * block_bytes);
  }
  const bool first = at.pp == 0;
  const bool last = at.pp == layout.mesh().pp - 1;
  if (first != last) {
    const int64_t base = first ? state.shape().tied_table_blocks.first
                               : state.shape().tied_head_blocks.first;
    for (const ckpt::BlockRange& share : TiedShares(layout, at.tp)) {
      tied_.first.push_back((base + share.first) * block_bytes);
      tied_.count.push_back(share.count * block_bytes);
    }
  }
}

absl::Status WeightExchange::GatherShares(const Shares& shares) {
  if (mesh_.dp->size() == 1) return absl::OkStatus();
  return mesh_.dp->AllGatherV(weights_, shares.first, shares.count, stream_);
}

absl::Status WeightExchange::Run() {
  HF_RETURN_IF_ERROR(GatherShares(owned_));
  if (tied_.first.empty()) return absl::OkStatus();
  using Transfer = DeviceCollectives::Transfer;
  const int dp = mesh_.dp->rank();
  DeviceCollectives& pp = *mesh_.pp;
  const bool sends = pp.rank() == 0;
  const Transfer transfer{
      sends ? Transfer::Kind::kSend : Transfer::Kind::kReceive,
      weights_.subspan(static_cast<size_t>(tied_.first[dp]),
                       static_cast<size_t>(tied_.count[dp])),
      sends ? pp.size() - 1 : 0};
  if (!transfer.data.empty()) {
    HF_RETURN_IF_ERROR(pp.Exchange({&transfer, 1}, stream_));
  }
  return sends ? absl::OkStatus() : GatherShares(tied_);
}

}  // namespace holdfast::trainer
