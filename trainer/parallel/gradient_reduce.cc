// trainer/parallel/gradient_reduce.cc: see the header.

#include "trainer/parallel/gradient_reduce.h"

#include <algorithm>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"

namespace holdfast::trainer {
namespace {

// On a processor joins go through this many elements of all pieces before the
// next ones, so that they stay in the first cache.
constexpr int64_t kJoinBlock = 2048;

int64_t ForeignPieces(const OwnerJoinPlan& plan, int member) {
  return std::count_if(plan.pieces.begin(), plan.pieces.end(),
                       [member](const OwnerJoinPlan::Piece& piece) {
                         return piece.member != member;
                       });
}

// All members must cut the same chunks, so every piece counts, not only the
// foreign ones, and the longest range.
int64_t ChunkElements(const OwnerJoinPlan& plan,
                      std::span<const ElementRange> owned,
                      const ReduceLimits& limits) {
  const auto fits = static_cast<int64_t>(limits.scratch_bytes / sizeof(float) /
                                         plan.pieces.size());
  int64_t longest = 1;
  for (const ElementRange& range : owned) {
    longest = std::max(longest, range.count);
  }
  return std::clamp<int64_t>(fits, 1, std::min(limits.chunk_elements, longest));
}

}  // namespace

GradientReducer::GradientReducer(DeviceCollectives& dp, OwnerJoinPlan plan,
                                 std::vector<ElementRange> owned,
                                 kernels::Device& device, int64_t chunk)
    : dp_(dp),
      plan_(std::move(plan)),
      owned_(std::move(owned)),
      device_(device),
      chunk_(chunk) {
  HF_CHECK(static_cast<int>(owned_.size()) == dp.size() &&
               plan_.pieces.back().member == dp.size() - 1,
           "%d owners, %d members, the last piece is of member %d",
           owned_.size(), dp.size(), plan_.pieces.back().member);
  rows_.resize(plan_.pieces.size());
  const int64_t foreign = ForeignPieces(plan_, dp.rank());
  const int64_t own = static_cast<int64_t>(plan_.pieces.size()) - foreign;
  transfers_.reserve(static_cast<size_t>(foreign + own * (dp.size() - 1)));
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    DeviceCollectives& dp, OwnerJoinPlan plan, std::vector<ElementRange> owned,
    kernels::Device& device, const ReduceLimits& limits) {
  const size_t scratch_bytes = ScratchBytes(plan, owned, dp.rank(), limits);
  const int64_t chunk = ChunkElements(plan, owned, limits);
  std::unique_ptr<GradientReducer> reducer(new GradientReducer(
      dp, std::move(plan), std::move(owned), device, chunk));
  if (scratch_bytes > 0) {
    HF_ASSIGN_OR_RETURN(
        reducer->scratch_,
        kernels::AllocateOwned(device, kernels::MemorySpace::kDevice,
                               scratch_bytes));
  }
  return reducer;
}

size_t GradientReducer::ScratchBytes(const OwnerJoinPlan& plan,
                                     std::span<const ElementRange> owned,
                                     int member, const ReduceLimits& limits) {
  return static_cast<size_t>(ForeignPieces(plan, member) *
                             ChunkElements(plan, owned, limits)) *
         sizeof(float);
}

ElementRange GradientReducer::ChunkOf(int member, int64_t round) const {
  const ElementRange& owned = owned_[member];
  const int64_t begin = std::max(owned.first, bucket_.first);
  const int64_t end =
      std::min(owned.first + owned.count, bucket_.first + bucket_.count);
  const int64_t first = begin + round * chunk_;
  return {first, std::clamp<int64_t>(end - first, 0, chunk_)};
}

absl::Status GradientReducer::ReduceWithin(
    const ElementRange& bucket, std::span<const std::span<float>> pieces,
    std::span<float> result, kernels::Stream& stream) {
  HF_CHECK(static_cast<int64_t>(result.size()) == owned_[dp_.rank()].count,
           "a result of %d elements for %d owned ones", result.size(),
           owned_[dp_.rank()].count);
  bucket_ = bucket;
  const auto any_left = [this](int64_t round) {
    for (int member = 0; member < dp_.size(); ++member) {
      if (ChunkOf(member, round).count > 0) return true;
    }
    return false;
  };
  for (int64_t round = 0; any_left(round); ++round) {
    HF_RETURN_IF_ERROR(Exchange(pieces, round, stream));
    JoinPieces(round, result, stream);
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Exchange(std::span<const std::span<float>> pieces,
                                       int64_t round, kernels::Stream& stream) {
  using Kind = DeviceCollectives::Transfer::Kind;
  const int me = dp_.rank();
  const ElementRange chunk = ChunkOf(me, round);
  const int64_t mine = chunk.count;
  transfers_.clear();

  float* next_row = scratch_.as<float>();
  for (size_t p = 0; p < plan_.pieces.size(); ++p) {
    const OwnerJoinPlan::Piece& piece = plan_.pieces[p];
    if (piece.member == me) {
      HF_CHECK(static_cast<size_t>(piece.index) < pieces.size(),
               "piece %d of %d", piece.index, pieces.size());
      rows_[p] = pieces[piece.index].data() + chunk.first;
      continue;
    }
    rows_[p] = next_row;
    next_row += chunk_;
    if (mine == 0) continue;
    transfers_.push_back({Kind::kReceive,
                          Bytes(std::span(rows_[p], static_cast<size_t>(mine))),
                          piece.member});
  }
  // Neighbours first, so that members do not all send to member 0 at once.
  for (int distance = 1; distance < dp_.size(); ++distance) {
    const int to = (me + distance) % dp_.size();
    const ElementRange theirs = ChunkOf(to, round);
    if (theirs.count == 0) continue;
    for (size_t p = 0; p < plan_.pieces.size(); ++p) {
      const OwnerJoinPlan::Piece& piece = plan_.pieces[p];
      if (piece.member != me) continue;
      const std::span<float> part = pieces[piece.index].subspan(
          static_cast<size_t>(theirs.first), static_cast<size_t>(theirs.count));
      transfers_.push_back({Kind::kSend, Bytes(part), to});
    }
  }
  if (transfers_.empty()) return absl::OkStatus();
  return dp_.Exchange(transfers_, stream);
}

void GradientReducer::JoinPieces(int64_t round, std::span<float> result,
                                 kernels::Stream& stream) {
  const ElementRange chunk = ChunkOf(dp_.rank(), round);
  const int64_t mine = chunk.count;
  if (mine == 0) return;
  float* const out = result.data() + chunk.first - owned_[dp_.rank()].first;
  const int64_t block = stream.immediate() ? kJoinBlock : mine;
  for (int64_t first = 0; first < mine; first += block) {
    const int64_t count = std::min(block, mine - first);
    for (const Join& join : plan_.joins) {
      kernels::Accumulate(stream, rows_[join.from] + first,
                          rows_[join.into] + first, count);
    }
    if (rows_[0] == out) continue;
    const auto bytes = [count](float* at) {
      return kernels::Buffer{kernels::MemorySpace::kDevice,
                             reinterpret_cast<std::byte*>(at),
                             static_cast<size_t>(count) * sizeof(float)};
    };
    device_.Copy(bytes(out + first), bytes(rows_[0] + first), stream);
  }
}

}  // namespace holdfast::trainer
