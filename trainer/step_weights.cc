// trainer/step_weights.cc: all-gather over DP, then the tied copy.

#include "trainer/step_weights.h"

#include <algorithm>
#include <limits>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

// Each costs a launch and two events.
constexpr int64_t kBucketsMax = 1000;
// Of a part: all buckets and the tied copy.
constexpr size_t kEverything = std::numeric_limits<size_t>::max();

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

absl::Status WeightExchange::Run() {
  WaitForAll();
  HF_RETURN_IF_ERROR(GatherShares(owned_, stream_));
  return CopyTied(stream_);
}

absl::Status WeightExchange::CopyTied(kernels::Stream& stream) {
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
    HF_RETURN_IF_ERROR(pp.Exchange({&transfer, 1}, stream));
  }
  return sends ? absl::OkStatus() : GatherShares(tied_, stream);
}

void WeightExchange::CutBuckets(std::span<const ElementRange> parts,
                                int64_t bucket_bytes) {
  const int64_t blocks =
      (owned_.first.back() + owned_.count.back()) / block_bytes_;
  const int64_t count =
      std::clamp<int64_t>(blocks * block_bytes_ / bucket_bytes, 1, kBucketsMax);
  buckets_.clear();
  for (int64_t i = 1; i <= count; ++i) {
    buckets_.push_back({.end = blocks * i / count});
  }
  needed_.clear();
  for (const ElementRange& part : parts) {
    // Tensors are whole blocks. The last part of a last stage may reach beyond
    // what is updated here: the tied copy, which comes after all buckets.
    const int64_t end = (part.first + part.count) / ckpt::kBlockElements;
    const auto last =
        std::find_if(buckets_.begin(), buckets_.end(),
                     [end](const Bucket& bucket) { return bucket.end >= end; });
    needed_.push_back(part.count == 0          ? 0
                      : last == buckets_.end() ? kEverything
                                               : last - buckets_.begin() + 1);
  }
}

void WeightExchange::OwnedFinal(int64_t count) {
  HF_CHECK(!under_way_, "weights are updated while they travel");
  const auto me = static_cast<size_t>(mesh_.dp->rank());
  const int64_t first = owned_.first[me] / block_bytes_;
  const int64_t owned = owned_.count[me] / block_bytes_;
  const auto is_final = [&](const Bucket& bucket) {
    return std::clamp<int64_t>(bucket.end - first, 0, owned) <= count;
  };
  if (ready_ == buckets_.size() || !is_final(buckets_[ready_])) return;
  const kernels::Event now = device_.Record(stream_);
  while (ready_ < buckets_.size() && is_final(buckets_[ready_])) {
    buckets_[ready_++].ready = now;
  }
}

absl::Status WeightExchange::GatherBeside() {
  OwnedFinal(owned_.count[static_cast<size_t>(mesh_.dp->rank())] /
             block_bytes_);
  ready_ = 0;
  under_way_ = true;
  waited_ = 0;
  int64_t begin = 0;
  for (Bucket& bucket : buckets_) {
    part_.first.clear();
    part_.count.clear();
    for (size_t dp = 0; dp < owned_.first.size(); ++dp) {
      const int64_t owned_end = owned_.first[dp] + owned_.count[dp];
      const int64_t first =
          std::clamp(begin * block_bytes_, owned_.first[dp], owned_end);
      part_.first.push_back(first);
      part_.count.push_back(
          std::clamp(bucket.end * block_bytes_, first, owned_end) - first);
    }
    begin = bucket.end;
    device_.WaitFor(*beside_, bucket.ready);
    HF_RETURN_IF_ERROR(GatherShares(part_, *beside_));
    bucket.done = device_.Record(*beside_);
  }
  return CopyTied(*beside_);
}

void WeightExchange::WaitForPart(int64_t part) {
  if (!under_way_) return;
  const size_t needed = needed_[static_cast<size_t>(part)];
  if (needed == kEverything) return WaitForAll();
  if (needed <= waited_) return;
  device_.WaitFor(stream_, buckets_[needed - 1].done);
  waited_ = needed;
}

void WeightExchange::WaitForAll() {
  if (!under_way_) return;
  device_.WaitFor(stream_, device_.Record(*beside_));
  under_way_ = false;
}

kernels::Event WeightExchange::AllEvent() {
  if (!under_way_) return device_.Record(stream_);
  device_.WaitFor(*beside_, device_.Record(stream_));
  return device_.Record(*beside_);
}

}  // namespace holdfast::trainer
