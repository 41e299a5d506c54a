// trainer/step_gradients.cc: reduce, join the tied accumulators, square.

#include "trainer/step_gradients.h"

#include <algorithm>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"
#include "trainer/step_weights.h"

namespace holdfast::trainer {
namespace {

using ckpt::kBlockElements;
using kernels::MemorySpace;

// Blocks squared by one kernel call.
constexpr int64_t kSquareBlocks = 4096;

// What every DP member owns, in elements of the local gradient.
std::vector<ElementRange> OwnedRanges(const ckpt::TrainLayout& layout,
                                      const ckpt::Coordinates& at) {
  std::vector<ElementRange> ranges;
  for (int dp = 0; dp < layout.mesh().dp; ++dp) {
    const ckpt::BlockRange owned = layout.OwnedBlocks(at.tp, at.pp, dp);
    ranges.push_back(
        {owned.first * kBlockElements, owned.count * kBlockElements});
  }
  return ranges;
}

// The shares of the tied head's accumulator; empty where there is none.
std::vector<ElementRange> HeadRanges(const ckpt::TrainLayout& layout,
                                     const ckpt::Coordinates& at,
                                     const TrainStateShape& shape) {
  std::vector<ElementRange> ranges;
  if (shape.tied_head_blocks.count == 0) return ranges;
  for (const ckpt::BlockRange& share : TiedShares(layout, at.tp)) {
    ranges.push_back(
        {(shape.tied_head_blocks.first + share.first) * kBlockElements,
         share.count * kBlockElements});
  }
  return ranges;
}

// Does this rank send or receive the head's gradient?
bool ExchangesTied(const StepPlan& plan, const ckpt::TrainLayout& layout) {
  const bool has_either = plan.state.tied_table_blocks.count > 0 ||
                          plan.state.tied_head_blocks.count > 0;
  return has_either && layout.mesh().pp > 1;
}

size_t ScratchBytes(const StepPlan& plan, std::span<const ElementRange> owned) {
  return GradientReducer::ScratchBytes(plan.owner_join, owned, plan.at.dp,
                                       plan.reduce_limits);
}

}  // namespace

int64_t GradientExchange::BufferBytes(const StepPlan& plan,
                                      const ckpt::TrainLayout& layout) {
  size_t bytes = ScratchBytes(plan, OwnedRanges(layout, plan.at));
  const std::vector<ElementRange> head =
      HeadRanges(layout, plan.at, plan.state);
  if (!head.empty()) bytes += ScratchBytes(plan, head);
  if (ExchangesTied(plan, layout) && plan.at.pp == 0) {
    bytes += kTiedChunk * sizeof(float);
  }
  bytes += kSquareBlocks * sizeof(double);
  return static_cast<int64_t>(bytes);
}

int64_t GradientExchange::MessageBytes(const StepPlan& plan,
                                       const ckpt::TrainLayout& layout) {
  const auto& pieces = plan.owner_join.pieces;
  const auto own = std::count_if(
      pieces.begin(), pieces.end(),
      [&](const auto& piece) { return piece.member == plan.at.dp; });
  const int64_t foreign = static_cast<int64_t>(pieces.size()) - own;
  if (foreign == 0) return 0;
  // Scratch is a chunk of every foreign piece; own ones go to every other.
  const auto received =
      static_cast<int64_t>(ScratchBytes(plan, OwnedRanges(layout, plan.at)));
  return received + received / foreign * own * (layout.mesh().dp - 1);
}

absl::StatusOr<std::unique_ptr<GradientExchange>> GradientExchange::Create(
    DeviceMesh& mesh, const TrainState& state, const StepPlan& plan,
    kernels::Device& device, kernels::Stream& stream) {
  auto exchange = std::unique_ptr<GradientExchange>(
      new GradientExchange(mesh, state, device, stream));
  HF_RETURN_IF_ERROR(exchange->Open(plan));
  return exchange;
}

absl::Status GradientExchange::Open(const StepPlan& plan) {
  const ckpt::TrainLayout& layout = state_.layout();
  const TrainStateShape& shape = plan.state;
  const int dp = plan.at.dp;
  beside_ = device_.NewStream();
  for (const int slot : plan.local_join.piece_slots) {
    pieces_.emplace_back(state_.gradients(slot),
                         static_cast<size_t>(state_.gradient_elements()));
  }
  const auto part = [&](const ElementRange& range) {
    return pieces_[0].subspan(static_cast<size_t>(range.first),
                              static_cast<size_t>(range.count));
  };
  const std::vector<ElementRange> owned = OwnedRanges(layout, plan.at);
  owned_share_ = part(owned[dp]);
  owned_ = owned_share_.data();
  HF_ASSIGN_OR_RETURN(blocks_,
                      GradientReducer::Create(*mesh_.dp, plan.owner_join, owned,
                                              device_, plan.reduce_limits));
  buffer_bytes_ += static_cast<int64_t>(ScratchBytes(plan, owned));

  const std::vector<ElementRange> head = HeadRanges(layout, plan.at, shape);
  if (!head.empty()) {
    head_share_ = part(head[dp]);
    HF_ASSIGN_OR_RETURN(
        head_, GradientReducer::Create(*mesh_.dp, plan.owner_join, head,
                                       device_, plan.reduce_limits));
    buffer_bytes_ += static_cast<int64_t>(ScratchBytes(plan, head));
  }
  if (shape.tied_table_blocks.count > 0) {
    const ckpt::BlockRange share = TiedShares(layout, plan.at.tp)[dp];
    const ElementRange range{
        (shape.tied_table_blocks.first + share.first) * kBlockElements,
        share.count * kBlockElements};
    table_share_ = part(range);
  }
  if (ExchangesTied(plan, layout) && plan.at.pp == 0) {
    HF_ASSIGN_OR_RETURN(chunk_,
                        kernels::AllocateOwned(device_, MemorySpace::kDevice,
                                               kTiedChunk * sizeof(float)));
    buffer_bytes_ += static_cast<int64_t>(chunk_.buffer().bytes);
  }
  // A kernel stores into it, and the host reads.
  HF_ASSIGN_OR_RETURN(squares_,
                      kernels::AllocateOwned(device_, MemorySpace::kShared,
                                             kSquareBlocks * sizeof(double)));
  buffer_bytes_ += static_cast<int64_t>(squares_.buffer().bytes);
  return absl::OkStatus();
}

absl::Status GradientExchange::ReduceBeside(const ElementRange& range) {
  device_.WaitFor(*beside_, device_.Record(stream_));
  beside_elements_ += range.count;
  return blocks_->ReduceWithin(range, pieces_, owned_share_, *beside_);
}

absl::Status GradientExchange::Reduce() {
  if (beside_elements_ == 0) {
    HF_RETURN_IF_ERROR(blocks_->Reduce(pieces_, owned_share_, stream_));
  } else {
    HF_CHECK(beside_elements_ == state_.shape().block_count * kBlockElements,
             "%d elements of %d were reduced in the backward", beside_elements_,
             state_.shape().block_count * kBlockElements);
    beside_elements_ = 0;
    device_.WaitFor(stream_, device_.Record(*beside_));
  }
  if (head_ != nullptr) {
    HF_RETURN_IF_ERROR(head_->Reduce(pieces_, head_share_, stream_));
  }
  return JoinTied();
}

absl::Status GradientExchange::JoinTied() {
  const bool has_table = !table_share_.empty();
  const bool has_head = !head_share_.empty();
  if (has_table && has_head) {
    kernels::Accumulate(stream_, head_share_.data(), table_share_.data(),
                        static_cast<int64_t>(head_share_.size()));
    return absl::OkStatus();
  }
  if (has_head) return SendTied(head_share_);
  if (has_table) return ReceiveTied(table_share_);
  return absl::OkStatus();
}

absl::Status GradientExchange::SendTied(std::span<float> head) {
  using Transfer = DeviceCollectives::Transfer;
  for (size_t first = 0; first < head.size(); first += kTiedChunk) {
    const auto piece =
        head.subspan(first, std::min<size_t>(kTiedChunk, head.size() - first));
    const Transfer transfer{Transfer::Kind::kSend, Bytes(piece), /*peer=*/0};
    HF_RETURN_IF_ERROR(mesh_.pp->Exchange({&transfer, 1}, stream_));
  }
  return absl::OkStatus();
}

absl::Status GradientExchange::ReceiveTied(std::span<float> table) {
  using Transfer = DeviceCollectives::Transfer;
  for (size_t first = 0; first < table.size(); first += kTiedChunk) {
    const std::span<float> into = table.subspan(
        first, std::min<size_t>(kTiedChunk, table.size() - first));
    const std::span<float> piece(chunk_.as<float>(), into.size());
    const Transfer transfer{Transfer::Kind::kReceive, Bytes(piece),
                            mesh_.pp->size() - 1};
    HF_RETURN_IF_ERROR(mesh_.pp->Exchange({&transfer, 1}, stream_));
    kernels::Accumulate(stream_, piece.data(), into.data(),
                        static_cast<int64_t>(into.size()));
  }
  return absl::OkStatus();
}

absl::Status GradientExchange::AddSquares(std::span<const OwnedRun> runs,
                                          ExactSum& sum) {
  double* const squares = squares_.as<double>();
  for (const OwnedRun& run : runs) {
    if (run.replica) continue;
    const int64_t end = run.first + run.count;
    for (int64_t first = run.first; first < end; first += kSquareBlocks) {
      const int64_t count = std::min(kSquareBlocks, end - first);
      kernels::BlockSumsOfSquares(stream_, owned_ + first * kBlockElements,
                                  count * kBlockElements, squares);
      HF_RETURN_IF_ERROR(mesh_.dp->Sync(stream_));
      for (int64_t block = 0; block < count; ++block) sum.Add(squares[block]);
    }
  }
  return absl::OkStatus();
}

}  // namespace holdfast::trainer
