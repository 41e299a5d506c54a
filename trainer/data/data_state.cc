// trainer/data/data_state.cc: cursors, ranges, and their text.

#include "trainer/data/data_state.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {

uint64_t MapCursor(std::span<const IndexRange> skipped, uint64_t n) {
  for (const IndexRange& range : skipped) {
    if (n < range.begin) break;
    n += range.end - range.begin;
  }
  return n;
}

void NextIndices(const DataState& state, std::span<uint64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = MapCursor(state.skipped, state.cursor + i);
  }
}

absl::Status SkipRange(DataState& state, IndexRange range) {
  if (range.begin >= range.end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("skipping samples %d to before %d: the range is empty",
                        range.begin, range.end));
  }
  const uint64_t next = MapCursor(state.skipped, state.cursor);
  if (range.begin < next) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "skipping samples %d to before %d: those before %d are consumed",
        range.begin, range.end, next));
  }
  std::vector<IndexRange> ranges = state.skipped;
  ranges.push_back(range);
  std::sort(ranges.begin(), ranges.end(),
            [](const IndexRange& a, const IndexRange& b) {
              return a.begin < b.begin;
            });
  state.skipped.clear();
  for (const IndexRange& next_range : ranges) {
    // Ranges that touch are one: text and comparison have one spelling.
    if (!state.skipped.empty() &&
        next_range.begin <= state.skipped.back().end) {
      state.skipped.back().end =
          std::max(state.skipped.back().end, next_range.end);
    } else {
      state.skipped.push_back(next_range);
    }
  }
  return absl::OkStatus();
}

std::string DataStateText(const DataState& state) {
  std::string text = absl::StrFormat("cursor=%d", state.cursor);
  for (size_t i = 0; i < state.skipped.size(); ++i) {
    absl::StrAppendFormat(&text, "%s%d-%d", i == 0 ? " skipped=" : ",",
                          state.skipped[i].begin, state.skipped[i].end);
  }
  return text;
}

absl::StatusOr<DataState> ParseDataState(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrFormat(
        "reading a data state: expected 'cursor=N' and perhaps ' "
        "skipped=A-B,C-D'; found '%s'",
        text));
  };
  std::string_view rest = text;
  const auto word = [&](std::string_view expected) {
    if (!rest.starts_with(expected)) return false;
    rest.remove_prefix(expected.size());
    return true;
  };
  const auto number = [&](uint64_t& out) {
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), out);
    rest.remove_prefix(end - rest.data());
    return error == std::errc();
  };
  DataState state;
  if (!word("cursor=") || !number(state.cursor)) return bad();
  if (!rest.empty() && !word(" skipped=")) return bad();
  while (!rest.empty()) {
    IndexRange range;
    if (!number(range.begin) || !word("-") || !number(range.end)) return bad();
    state.skipped.push_back(range);
    if (!rest.empty() && (!word(",") || rest.empty())) return bad();
  }
  // One meaning, one spelling: ranges in disorder are refused too.
  for (size_t i = 0; i < state.skipped.size(); ++i) {
    const bool apart =
        i == 0 || state.skipped[i - 1].end < state.skipped[i].begin;
    if (state.skipped[i].begin >= state.skipped[i].end || !apart) return bad();
  }
  if (DataStateText(state) != text) return bad();
  return state;
}

}  // namespace holdfast::trainer
