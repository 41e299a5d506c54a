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
                               kernels::Device& device, kernels::Stream& stream)
    : mesh_(mesh),
      device_(device),
      stream_(stream),
      block_bytes_(ckpt::kBlockElements * state.shape().weight_bytes),
      weights_(state.regions()[ckpt::kWeightRegion].data,
               state.regions()[ckpt::kWeightRegion].bytes),
      beside_(device.NewStream()) {
  const ckpt::TrainLayout& layout = state.layout();
  const ckpt::Coordinates& at = state.at();
  for (int dp = 0; dp < layout.mesh().dp; ++dp) {
    const ckpt::BlockRange owned = layout.OwnedBlocks(at.tp, at.pp, dp);
    owned_.first.push_back(owned.first * block_bytes_);
    owned_.count.push_back(owned.count * block_bytes_);
  }
  const bool first = at.pp == 0;
  const bool last = at.pp == layout.mesh().pp - 1;
  if (first != last) {
    const int64_t base = first ? state.shape().tied_table_blocks.first
                               : state.shape().tied_head_blocks.first;
    for (const ckpt::BlockRange& share : TiedShares(layout, at.tp)) {
      tied_.first.push_back((base + share.first) * block_bytes_);
      tied_.count.push_back(share.count * block_bytes_);
    }
  }
}

absl::Status WeightExchange::GatherShares(const Shares& shares,
                                          kernels::Stream& stream) {
  if (mesh_.dp->size() == 1) return absl::OkStatus();
  return mesh_.dp->AllGatherV(weights_, shares.first, shares.count, stream);
}

int64_t WeightExchange::PartEnd(int part, int parts) const {
  const int64_t blocks = owned_.count[mesh_.dp->rank()] / block_bytes_;
  return blocks * (part + 1) / parts;
}

absl::Status WeightExchange::GatherBeside(int part, int parts) {
  part_.first.clear();
  part_.count.clear();
  for (size_t dp = 0; dp < owned_.first.size(); ++dp) {
    const int64_t blocks = owned_.count[dp] / block_bytes_;
    const int64_t first = blocks * part / parts;
    const int64_t end = blocks * (part + 1) / parts;
    part_.first.push_back(owned_.first[dp] + first * block_bytes_);
    part_.count.push_back((end - first) * block_bytes_);
  }
  device_.WaitFor(*beside_, device_.Record(stream_));
  beside_done_ = part + 1 == parts;
  return GatherShares(part_, *beside_);
}

absl::Status WeightExchange::Run() {
  if (beside_done_) {
    beside_done_ = false;
    device_.WaitFor(stream_, device_.Record(*beside_));
  } else {
    HF_RETURN_IF_ERROR(GatherShares(owned_, stream_));
  }
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
  return sends ? absl::OkStatus() : GatherShares(tied_, stream_);
}

}  // namespace holdfast::trainer
