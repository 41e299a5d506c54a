// ckpt/plan/share_plan.cc: wanted bytes to windows, windows to readers.

#include "ckpt/plan/share_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

// A window of a file, as one number that sorts by (file, place).
uint64_t KeyOf(uint32_t file, uint64_t window) {
  return uint64_t{file} << 32 | window;
}
uint32_t FileOf(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
uint64_t WindowOf(uint64_t key) { return key & UINT32_MAX; }

// Calls visit(window, bytes) for each window of which `step` may need a unit,
// with the wanted bytes there. A unit that begins in a window reaches at most
// one unit's length beyond it, so a window is looked at with that much more.
template <typename Visit>
void EachWindow(const ReadStep& step, uint64_t window_bytes, Visit visit) {
  const uint64_t end_all =
      step.file_offset + (step.rows - 1) * step.file_stride + step.row_bytes;
  const uint64_t first =
      step.file_offset < kUnitBytesMax
          ? 0
          : (step.file_offset - kUnitBytesMax) / window_bytes;
  for (uint64_t w = first; w * window_bytes < end_all; ++w) {
    const uint64_t begin = w * window_bytes;
    const uint64_t end = begin + window_bytes + kUnitBytesMax;
    if (end <= step.file_offset) continue;
    uint64_t row = 0;
    uint64_t last = 0;
    if (step.rows > 1) {
      const uint64_t row_end = step.file_offset + step.row_bytes;
      if (row_end <= begin) row = (begin - row_end) / step.file_stride + 1;
      last = std::min(step.rows - 1,
                      (end - 1 - step.file_offset) / step.file_stride);
    }
    if (row > last) continue;
    const uint64_t from = step.file_offset + row * step.file_stride;
    const uint64_t to =
        step.file_offset + last * step.file_stride + step.row_bytes;
    uint64_t bytes = (last - row + 1) * step.row_bytes;
    if (from < begin) bytes -= begin - from;
    if (to > end) bytes -= to - end;
    visit(w, bytes);
  }
}

// The windows that this rank wants something of, and who else does.
class Windows {
 public:
  Windows(const std::vector<ReadStep>& own, uint64_t window_bytes)
      : window_bytes_(window_bytes) {
    for (const ReadStep& step : own) {
      EachWindow(step, window_bytes, [&](uint64_t window, uint64_t) {
        const uint64_t key = KeyOf(step.file, window);
        if (keys_.empty() || keys_.back() != key) keys_.push_back(key);
      });
    }
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    wanters_.resize(keys_.size());
  }

  const std::vector<uint64_t>& keys() const { return keys_; }

  // Notes what `rank` wants. Ranks come in ascending order. True if any of it
  // is in these windows.
  bool Add(Rank rank, const ReadStep& step) {
    bool met = false;
    EachWindow(step, window_bytes_, [&](uint64_t window, uint64_t bytes) {
      const std::optional<size_t> at = Find(KeyOf(step.file, window));
      if (!at.has_value()) return;
      met = true;
      std::vector<Wanter>& wanters = wanters_[*at];
      if (wanters.empty() || wanters.back().rank != rank) {
        wanters.push_back({rank, 0});
      }
      wanters.back().bytes += bytes;
    });
    return met;
  }

  // Who reads it: one of those that want much of it, in turn. Most bytes then
  // stay where they are read, and equal wishes are equal work.
  Rank ReaderOf(size_t at) const {
    const std::vector<Wanter>& wanters = wanters_[at];
    uint64_t most = 0;
    for (const Wanter& w : wanters) most = std::max(most, w.bytes);
    std::vector<Rank> eager;
    for (const Wanter& w : wanters) {
      if (w.bytes >= most / 2) eager.push_back(w.rank);
    }
    HF_CHECK(!eager.empty(), "a window that nobody wants");
    return eager[(FileOf(keys_[at]) + WindowOf(keys_[at])) % eager.size()];
  }

  // Does `step` need any of the windows that `mine` says?
  bool Meets(const ReadStep& step, const std::vector<bool>& mine) const {
    bool meets = false;
    EachWindow(step, window_bytes_, [&](uint64_t window, uint64_t) {
      const std::optional<size_t> at = Find(KeyOf(step.file, window));
      meets |= at.has_value() && mine[*at];
    });
    return meets;
  }

 private:
  struct Wanter {
    Rank rank{};
    uint64_t bytes = 0;
  };

  std::optional<size_t> Find(uint64_t key) const {
    const auto found = std::lower_bound(keys_.begin(), keys_.end(), key);
    if (found == keys_.end() || *found != key) return std::nullopt;
    return found - keys_.begin();
  }

  const uint64_t window_bytes_;
  std::vector<uint64_t> keys_;
  std::vector<std::vector<Wanter>> wanters_;  // by rank
};

// The wanted items that have a chunk in one of the windows' files.
std::vector<bool> ItemsOfFiles(const Manifest& saved,
                               const std::vector<ItemSpec>& wanted_items,
                               const std::vector<uint64_t>& windows) {
  std::vector<bool> in_files(saved.items.size());
  std::optional<uint32_t> last;
  for (const uint64_t key : windows) {
    if (last == FileOf(key)) continue;
    last = FileOf(key);
    for (const Chunk& chunk : saved.files[*last].chunks) {
      in_files[chunk.item] = true;
    }
  }
  // Both lists ascend by (name, kind).
  std::vector<bool> wanted(wanted_items.size());
  const auto key = [](const ItemSpec& item) {
    return std::tie(item.name, item.kind);
  };
  for (size_t i = 0, s = 0; i < wanted_items.size(); ++i) {
    while (s < saved.items.size() && key(saved.items[s]) < key(wanted_items[i]))
      ++s;
    wanted[i] = s < saved.items.size() && in_files[s] &&
                key(saved.items[s]) == key(wanted_items[i]);
  }
  return wanted;
}

}  // namespace

absl::StatusOr<SharePlan> PlanShare(
    const Manifest& saved, const std::vector<ItemSpec>& wanted_items, int world,
    Rank self, const std::function<Holding(Rank)>& wanted_by,
    const ShareOptions& options) {
  HF_CHECK(
      options.window_bytes > 0 && options.window_bytes % kShardBlockBytes == 0,
      "windows of %d bytes", options.window_bytes);
  SharePlan plan;
  HF_ASSIGN_OR_RETURN(plan.own, PlanLoad(saved, wanted_items, wanted_by(self)));
  Windows windows(plan.own.steps, options.window_bytes);

  const std::vector<bool> is_near =
      ItemsOfFiles(saved, wanted_items, windows.keys());
  HF_ASSIGN_OR_RETURN(const LoadPlanner planner,
                      LoadPlanner::Create(saved, wanted_items, is_near));
  std::map<Rank, std::vector<ReadStep>> others;
  std::vector<ReadStep> steps;
  for (int r = 0; r < world; ++r) {
    const Rank rank{r};
    if (rank == self) {
      for (const ReadStep& step : plan.own.steps) windows.Add(self, step);
      continue;
    }
    const Holding holding = wanted_by(rank);
    steps.clear();
    for (const Fragment& fragment : holding.fragments) {
      if (!is_near[fragment.item]) continue;
      HF_RETURN_IF_ERROR(planner.Append(fragment, &steps));
    }
    // Joined as that rank joins them, all that it wants of a file being here:
    // both sides pack by the steps, in their order.
    SortAndJoin(&steps);
    for (const ReadStep& step : steps) {
      if (windows.Add(rank, step)) others[rank].push_back(step);
    }
  }

  std::vector<bool> mine(windows.keys().size());
  for (size_t at = 0; at < mine.size(); ++at) {
    const Rank reader = windows.ReaderOf(at);
    mine[at] = reader == self;
    if (!mine[at]) {
      plan.senders.push_back(reader);
      continue;
    }
    const uint64_t key = windows.keys()[at];
    const uint64_t begin = WindowOf(key) * options.window_bytes;
    const uint64_t end = begin + options.window_bytes;
    if (!plan.reads.empty() && plan.reads.back().file == FileOf(key) &&
        plan.reads.back().end == begin) {
      plan.reads.back().end = end;
    } else {
      plan.reads.push_back({FileOf(key), begin, end});
    }
  }
  std::sort(plan.senders.begin(), plan.senders.end());
  plan.senders.erase(std::unique(plan.senders.begin(), plan.senders.end()),
                     plan.senders.end());
  for (auto& [rank, wanted] : others) {
    std::erase_if(wanted, [&](const ReadStep& step) {
      return !windows.Meets(step, mine);
    });
    if (wanted.empty()) continue;
    SharePlan::Receiver& receiver = plan.receivers.emplace_back();
    receiver.rank = rank;
    receiver.wants.steps = std::move(wanted);
  }
  return plan;
}

SharedReads::SharedReads(const SharePlan& plan) : plan_(plan), own_(plan.own) {
  for (const SharePlan::Receiver& receiver : plan.receivers) {
    receivers_.emplace_back(receiver.wants);
  }
  for (const SharePlan::Range& range : plan.reads) {
    if (files_.empty() || files_.back() != range.file) {
      files_.push_back(range.file);
    }
  }
}

std::vector<UnitRead> SharedReads::UnitsToRead(uint32_t file,
                                               std::span<const Unit> units,
                                               uint64_t bytes_max) const {
  auto range = std::lower_bound(
      plan_.reads.begin(), plan_.reads.end(), file,
      [](const SharePlan::Range& r, uint32_t f) { return r.file < f; });
  std::vector<UnitRead> reads;
  for (uint32_t i = 0; i < units.size(); ++i) {
    const uint64_t begin = units[i].offset;
    const uint64_t end = begin + units[i].bytes;
    while (range != plan_.reads.end() && range->file == file &&
           range->end <= begin) {
      ++range;
    }
    if (range == plan_.reads.end() || range->file != file) break;
    if (begin < range->begin) continue;
    const auto wants = [&](const Scatter& scatter) {
      return scatter.Wants(file, begin, end);
    };
    if (!wants(own_) &&
        std::none_of(receivers_.begin(), receivers_.end(), wants)) {
      continue;
    }
    AddToReads(i, units[i], bytes_max, &reads);
  }
  return reads;
}

}  // namespace holdfast::ckpt
