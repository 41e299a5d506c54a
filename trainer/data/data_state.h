// trainer/data/data_state.h: how far a run has read, and what it steps over.
//
// This is all of the data that a checkpoint holds: one cursor for the whole
// job, and skipped ranges. The number of ranks is not in it. Pure.
//
//   skipped [4, 6)   consumed  0 1 2 3 4 5 ...
//                    index     0 1 2 3 6 7 ...

#ifndef HOLDFAST_TRAINER_DATA_DATA_STATE_H_
#define HOLDFAST_TRAINER_DATA_DATA_STATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::trainer {

// Global indices from `begin` to before `end`.
struct IndexRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

struct DataState {
  // Samples consumed by finished steps: a step adds batch.global_seqs.
  uint64_t cursor = 0;
  // Sorted, apart from one another, none empty.
  std::vector<IndexRange> skipped = {};

  friend bool operator==(const DataState&, const DataState&) = default;
};

// The global index of the n-th consumed sample, from 0. Costs a step for each
// range.
uint64_t MapCursor(std::span<const IndexRange> skipped, uint64_t n);

// The global indices of samples cursor to cursor + out.size() - 1.
void NextIndices(const DataState& state, std::span<uint64_t> out);

// Adds a range to step over, such as a stretch of data whose loss spikes.
//
// kInvalidArgument: the range is empty, or starts before the index that would
//     be consumed next: what is consumed cannot be stepped over.
absl::Status SkipRange(DataState& state, IndexRange range);

// "cursor=128 skipped=40-60,90-100"; skipped is left out when there is none.
std::string DataStateText(const DataState& state);

// kInvalidArgument: not exactly what DataStateText writes.
absl::StatusOr<DataState> ParseDataState(std::string_view text);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_DATA_STATE_H_
