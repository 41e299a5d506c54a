// trainer/step_gradients.cc: reduce, join the tied accumulators, square.

#include "trainer/step_gradients.h"

#include <algorithm>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"
#include "trainer/parallel/ordered_sum.h"
#include "trainer/step_weights.h"

namespace holdfast::trainer {
namespace {

using ckpt::kBlockElements;
using kernels::MemorySpace;

constexpr int kTiedGradientTag =
    3;  // 0, 1: step_pipeline.cc; 2: step_weights.cc

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

}  // namespace

int64_t GradientExchange::BufferBytes(const StepPlan& plan,
                                      const ckpt::TrainLayout& layout) {
  size_t bytes = GradientReducer::ScratchBytes(plan.owner_join, plan.at.dp);
  if (plan.state.tied_head_blocks.count > 0) {
    bytes += GradientReducer::ScratchBytes(plan.owner_join, plan.at.dp);
  }
  if (ExchangesTied(plan, layout) && plan.at.pp == 0) {
    bytes += kTiedChunk * sizeof(float);
  }
  bytes += kSquareBlocks * sizeof(double);
  if (plan.stage.staged) {
    bytes += plan.local_join.piece_slots.size() *
             static_cast<size_t>(plan.state.GradientBytes());
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<std::unique_ptr<GradientExchange>> GradientExchange::Create(
    MeshCollectives& mesh, const TrainState& state, const StepPlan& plan,
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
  for (const int slot : plan.local_join.piece_slots) {
    HF_ASSIGN_OR_RETURN(
        Mirror mirror,
        Mirror::Create(device_, stream_, state_.gradient_buffer(slot),
                       plan.stage.staged));
    buffer_bytes_ += mirror.pinned_bytes();
    pieces_.emplace_back(mirror.as<float>(),
                         static_cast<size_t>(state_.gradient_elements()));
    mirrors_.push_back(std::move(mirror));
  }
  const auto part = [&](const ElementRange& range) {
    return pieces_[0].subspan(static_cast<size_t>(range.first),
                              static_cast<size_t>(range.count));
  };
  const std::vector<ElementRange> owned = OwnedRanges(layout, plan.at);
  owned_host_ = part(owned[dp]);
  owned_ = state_.gradients(plan.local_join.piece_slots[0]) + owned[dp].first;
  blocks_ =
      std::make_unique<GradientReducer>(*mesh_.dp, plan.owner_join, owned);
  buffer_bytes_ +=
      static_cast<int64_t>(GradientReducer::ScratchBytes(plan.owner_join, dp));

  const std::vector<ElementRange> head = HeadRanges(layout, plan.at, shape);
  if (!head.empty()) {
    head_share_ = part(head[dp]);
    head_ = std::make_unique<GradientReducer>(*mesh_.dp, plan.owner_join, head);
    buffer_bytes_ += static_cast<int64_t>(
        GradientReducer::ScratchBytes(plan.owner_join, dp));
  }
  if (shape.tied_table_blocks.count > 0) {
    const ckpt::BlockRange share = TiedShares(layout, plan.at.tp)[dp];
    const ElementRange range{
        (shape.tied_table_blocks.first + share.first) * kBlockElements,
        share.count * kBlockElements};
    table_share_ = part(range);
  }
  if (ExchangesTied(plan, layout) && plan.at.pp == 0) {
    chunk_.resize(kTiedChunk);
    buffer_bytes_ += kTiedChunk * static_cast<int64_t>(sizeof(float));
  }
  HF_ASSIGN_OR_RETURN(squares_,
                      kernels::AllocateOwned(device_, MemorySpace::kPinned,
                                             kSquareBlocks * sizeof(double)));
  buffer_bytes_ += static_cast<int64_t>(squares_.buffer().bytes);
  return absl::OkStatus();
}

absl::Status GradientExchange::Reduce() {
  for (const Mirror& mirror : mirrors_) mirror.Download(0, mirror.bytes());
  HF_RETURN_IF_ERROR(blocks_->Reduce(pieces_, owned_host_));
  if (head_ != nullptr) {
    HF_RETURN_IF_ERROR(head_->Reduce(pieces_, head_share_));
  }
  HF_RETURN_IF_ERROR(JoinTied());
  const auto first =
      static_cast<size_t>(owned_host_.data() - mirrors_[0].as<float>());
  mirrors_[0].Upload(first * sizeof(float), owned_host_.size_bytes());
  return absl::OkStatus();
}

absl::Status GradientExchange::JoinTied() {
  const bool has_table = !table_share_.empty();
  const bool has_head = !head_share_.empty();
  if (has_table && has_head) {
    AddInto(table_share_, head_share_);
    return absl::OkStatus();
  }
  if (has_head) return SendTied(head_share_);
  if (has_table) return ReceiveTied(table_share_);
  return absl::OkStatus();
}

absl::Status GradientExchange::SendTied(std::span<const float> head) {
  for (size_t first = 0; first < head.size(); first += kTiedChunk) {
    const auto piece =
        head.subspan(first, std::min<size_t>(kTiedChunk, head.size() - first));
    HF_ASSIGN_OR_RETURN(
        const RequestId request,
        mesh_.pp->Isend(ConstBytes(piece), /*to=*/0, kTiedGradientTag));
    HF_RETURN_IF_ERROR(mesh_.pp->Wait(request));
  }
  return absl::OkStatus();
}

absl::Status GradientExchange::ReceiveTied(std::span<float> table) {
  for (size_t first = 0; first < table.size(); first += kTiedChunk) {
    const std::span<float> into = table.subspan(
        first, std::min<size_t>(kTiedChunk, table.size() - first));
    const std::span<float> piece = std::span(chunk_).first(into.size());
    HF_ASSIGN_OR_RETURN(
        const RequestId request,
        mesh_.pp->Irecv(Bytes(piece), mesh_.pp->size() - 1, kTiedGradientTag));
    HF_RETURN_IF_ERROR(mesh_.pp->Wait(request));
    AddInto(into, piece);
  }
  return absl::OkStatus();
}

void GradientExchange::AddSquares(std::span<const OwnedRun> runs,
                                  ExactSum& sum) {
  double* const squares = squares_.as<double>();
  for (const OwnedRun& run : runs) {
    if (run.replica) continue;
    const int64_t end = run.first + run.count;
    for (int64_t first = run.first; first < end; first += kSquareBlocks) {
      const int64_t count = std::min(kSquareBlocks, end - first);
      kernels::BlockSumsOfSquares(stream_, owned_ + first * kBlockElements,
                                  count * kBlockElements, squares);
      device_.Sync(stream_);
      for (int64_t block = 0; block < count; ++block) sum.Add(squares[block]);
    }
  }
}

}  // namespace holdfast::trainer
