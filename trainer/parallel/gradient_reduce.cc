// trainer/parallel/gradient_reduce.cc: see the header.

#include "trainer/parallel/gradient_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ckpt/base/check.h"
#include "trainer/parallel/ordered_sum.h"

namespace holdfast::trainer {
namespace {

// Joins go through this many elements of all pieces before the next ones, so
// that they stay in the first cache.
constexpr int64_t kJoinBlock = 2048;

int64_t ForeignPieces(const OwnerJoinPlan& plan, int member) {
  return std::count_if(plan.pieces.begin(), plan.pieces.end(),
                       [member](const OwnerJoinPlan::Piece& piece) {
                         return piece.member != member;
                       });
}

// All members must cut the same chunks, so every piece counts, not only the
// foreign ones.
int64_t ChunkElements(const OwnerJoinPlan& plan, int64_t chunk_elements_max) {
  const int64_t fits = static_cast<int64_t>(GradientReducer::kScratchBytes /
                                            sizeof(float) / plan.pieces.size());
  return std::clamp<int64_t>(fits, 1, chunk_elements_max);
}

}  // namespace

GradientReducer::GradientReducer(Collectives& dp, OwnerJoinPlan plan,
                                 std::vector<ElementRange> owned,
                                 int64_t chunk_elements_max)
    : dp_(dp),
      plan_(std::move(plan)),
      owned_(std::move(owned)),
      chunk_(ChunkElements(plan_, chunk_elements_max)) {
  HF_CHECK(static_cast<int>(owned_.size()) == dp.size() &&
               plan_.pieces.back().member == dp.size() - 1,
           "%d owners, %d members, the last piece is of member %d",
           owned_.size(), dp.size(), plan_.pieces.back().member);
  for (const ElementRange& range : owned_) {
    rounds_ = std::max(rounds_, (range.count + chunk_ - 1) / chunk_);
  }
  scratch_.resize(ScratchBytes(plan_, dp.rank(), chunk_elements_max) /
                  sizeof(float));
  rows_.resize(plan_.pieces.size());
  const int64_t foreign = ForeignPieces(plan_, dp.rank());
  const int64_t own = static_cast<int64_t>(plan_.pieces.size()) - foreign;
  requests_.reserve(static_cast<size_t>(foreign + own * (dp.size() - 1)));
}

size_t GradientReducer::ScratchBytes(const OwnerJoinPlan& plan, int member,
                                     int64_t chunk_elements_max) {
  return static_cast<size_t>(ForeignPieces(plan, member) *
                             ChunkElements(plan, chunk_elements_max)) *
         sizeof(float);
}

int64_t GradientReducer::ChunkCount(int member, int64_t round) const {
  return std::clamp<int64_t>(owned_[member].count - round * chunk_, 0, chunk_);
}

absl::Status GradientReducer::Reduce(std::span<const std::span<float>> pieces,
                                     std::span<float> result) {
  HF_CHECK(static_cast<int64_t>(result.size()) == owned_[dp_.rank()].count,
           "a result of %d elements for %d owned ones", result.size(),
           owned_[dp_.rank()].count);
  for (int64_t round = 0; round < rounds_; ++round) {
    if (absl::Status status = Exchange(pieces, round); !status.ok()) {
      return status;
    }
    JoinPieces(round, result);
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Exchange(std::span<const std::span<float>> pieces,
                                       int64_t round) {
  const int me = dp_.rank();
  const int64_t mine = ChunkCount(me, round);
  absl::Status first_error;
  const auto keep = [&](absl::StatusOr<RequestId> request) {
    if (request.ok()) {
      requests_.push_back(*request);
    } else {
      first_error.Update(request.status());
    }
  };

  float* next_row = scratch_.data();
  for (size_t p = 0; p < plan_.pieces.size(); ++p) {
    const OwnerJoinPlan::Piece& piece = plan_.pieces[p];
    if (piece.member == me) {
      HF_CHECK(static_cast<size_t>(piece.index) < pieces.size(),
               "piece %d of %d", piece.index, pieces.size());
      rows_[p] = pieces[piece.index].data() + owned_[me].first + round * chunk_;
      continue;
    }
    rows_[p] = next_row;
    next_row += chunk_;
    if (mine == 0 || !first_error.ok()) continue;
    keep(dp_.Irecv(Bytes(std::span<float>(rows_[p], static_cast<size_t>(mine))),
                   piece.member, static_cast<int>(p)));
  }
  // Neighbours first, so that members do not all send to member 0 at once.
  for (int distance = 1; distance < dp_.size(); ++distance) {
    const int to = (me + distance) % dp_.size();
    const int64_t count = ChunkCount(to, round);
    if (count == 0) continue;
    for (size_t p = 0; p < plan_.pieces.size() && first_error.ok(); ++p) {
      const OwnerJoinPlan::Piece& piece = plan_.pieces[p];
      if (piece.member != me) continue;
      const std::span<float> part = pieces[piece.index].subspan(
          static_cast<size_t>(owned_[to].first + round * chunk_),
          static_cast<size_t>(count));
      keep(dp_.Isend(ConstBytes(std::span<const float>(part)), to,
                     static_cast<int>(p)));
    }
  }
  for (const RequestId request : requests_) {
    first_error.Update(dp_.Wait(request));
  }
  requests_.clear();
  return first_error;
}

void GradientReducer::JoinPieces(int64_t round, std::span<float> result) {
  const int64_t mine = ChunkCount(dp_.rank(), round);
  float* const out = result.data() + round * chunk_;
  for (int64_t first = 0; first < mine; first += kJoinBlock) {
    const size_t count =
        static_cast<size_t>(std::min(kJoinBlock, mine - first));
    for (const Join& join : plan_.joins) {
      AddInto({rows_[join.into] + first, count},
              {rows_[join.from] + first, count});
    }
    if (rows_[0] != out) {
      std::memcpy(out + first, rows_[0] + first, count * sizeof(float));
    }
  }
}

}  // namespace holdfast::trainer
