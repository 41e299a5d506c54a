// ckpt/plan/load_plan.cc: stored runs met with wanted ones.
//
// Both are runs of the row-major order of a box. When the boxes are the same,
// two runs meet in one run. Otherwise both are cut into boxes, which meet in
// boxes, and each of those is copied row by row.

#include "ckpt/plan/load_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

struct Stored {
  uint32_t file = 0;
  const Chunk* chunk = nullptr;
};

// The chunks of the items that are wanted, by manifest item, sorted by
// (part, first).
class StoredIndex {
 public:
  StoredIndex(const Manifest& saved, const std::vector<bool>& is_wanted) {
    std::vector<size_t> counts(saved.items.size() + 1);
    const auto each = [&](auto visit) {
      for (uint32_t f = 0; f < saved.files.size(); ++f) {
        for (const Chunk& chunk : saved.files[f].chunks) {
          if (is_wanted[chunk.item]) visit(Stored{f, &chunk});
        }
      }
    };
    each([&](const Stored& s) { ++counts[s.chunk->item + 1]; });
    begins_.resize(counts.size());
    for (size_t i = 1; i < counts.size(); ++i) {
      begins_[i] = begins_[i - 1] + counts[i];
    }
    all_.resize(begins_.back());
    std::vector<size_t> next = begins_;
    each([&](const Stored& s) { all_[next[s.chunk->item]++] = s; });
    for (size_t i = 0; i + 1 < begins_.size(); ++i) {
      std::sort(all_.begin() + begins_[i], all_.begin() + begins_[i + 1],
                [](const Stored& a, const Stored& b) {
                  const Chunk &x = *a.chunk, &y = *b.chunk;
                  return std::tie(x.part.first, x.part.count, x.first) <
                         std::tie(y.part.first, y.part.count, y.first);
                });
    }
  }

  // Calls `visit` with each stretch of chunks of `item` that have one part.
  template <typename Visit>
  void EachPart(ItemIndex item, Visit visit) const {
    auto begin = all_.begin() + begins_[item];
    const auto end = all_.begin() + begins_[item + 1];
    while (begin != end) {
      const Box& part = begin->chunk->part;
      const auto stop = std::partition_point(begin, end, [&](const Stored& s) {
        return std::tie(s.chunk->part.first, s.chunk->part.count) <=
               std::tie(part.first, part.count);
      });
      visit(std::span<const Stored>(begin, stop));
      begin = stop;
    }
  }

 private:
  std::vector<Stored> all_;
  std::vector<size_t> begins_;
};

// Elements between neighbours in dimension `d` of `part`'s row-major order.
std::array<int64_t, kDimensionsMax> Strides(const Box& part) {
  std::array<int64_t, kDimensionsMax> strides{};
  int64_t stride = 1;
  for (int d = part.dimensions - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= part.count[d];
  }
  return strides;
}

// The place of `box`'s first element in the row-major order of `part`.
int64_t IndexIn(const Box& part, const Box& box) {
  int64_t index = 0;
  for (int d = 0; d < part.dimensions; ++d) {
    index = index * part.count[d] + box.first[d] - part.first[d];
  }
  return index;
}

// ... and one past the place of its last.
int64_t EndIn(const Box& part, const Box& box) {
  int64_t index = 0;
  for (int d = 0; d < part.dimensions; ++d) {
    index =
        index * part.count[d] + box.first[d] + box.count[d] - 1 - part.first[d];
  }
  return index + 1;
}

// Copies `box`, which lies in the runs of both. One step has one strided
// dimension; what is left of the others is walked, a step for each place.
void AppendBox(const Fragment& wanted, const Stored& stored, const Box& box,
               int64_t size, std::vector<ReadStep>* steps) {
  const Chunk& chunk = *stored.chunk;
  const auto in_file = Strides(chunk.part);
  const auto in_memory = Strides(wanted.part);
  // Dimensions [d, end) are one contiguous piece on both sides.
  int d = box.dimensions;
  int64_t row = 1;
  while (d > 0 && in_file[d - 1] == row && in_memory[d - 1] == row) {
    row *= box.count[d - 1];
    --d;
  }
  // Dimensions of one place need no walk.
  const auto skip_single = [&] {
    while (d > 0 && box.count[d - 1] == 1) --d;
  };
  skip_single();
  ReadStep step{
      .file = stored.file,
      .file_offset =
          chunk.offset + (IndexIn(chunk.part, box) - chunk.first) * size,
      .region = wanted.region,
      .region_offset =
          wanted.offset + (IndexIn(wanted.part, box) - wanted.first) * size,
      .row_bytes = static_cast<uint64_t>(row * size)};
  if (d > 0) {
    --d;
    step.rows = box.count[d];
    step.file_stride = in_file[d] * size;
    step.region_stride = in_memory[d] * size;
  }
  int64_t places = 1;
  for (int e = 0; e < d; ++e) places *= box.count[e];
  for (int64_t place = 0; place < places; ++place) {
    ReadStep at = step;
    int64_t rest = place;
    for (int e = d - 1; e >= 0; --e) {
      const int64_t coordinate = rest % box.count[e];
      rest /= box.count[e];
      at.file_offset += coordinate * in_file[e] * size;
      at.region_offset += coordinate * in_memory[e] * size;
    }
    steps->push_back(at);
  }
}

// Appends the steps from `stored`, chunks of one part, to `wanted`. Returns how
// many elements they cover.
int64_t AppendMeeting(const Fragment& wanted,
                      const std::vector<Box>& wanted_boxes,
                      std::span<const Stored> stored, int64_t size,
                      std::vector<ReadStep>* steps) {
  const Box& part = stored.front().chunk->part;
  int64_t covered = 0;
  // The chunks whose runs reach into [begin, end) of the part's order.
  const auto each_in = [&](int64_t begin, int64_t end, auto visit) {
    auto s = std::partition_point(
        stored.begin(), stored.end(), [&](const Stored& x) {
          return x.chunk->first + x.chunk->count <= begin;
        });
    for (; s != stored.end() && s->chunk->first < end; ++s) visit(*s);
  };
  if (part == wanted.part) {
    const int64_t end = wanted.first + wanted.count;
    each_in(wanted.first, end, [&](const Stored& s) {
      const int64_t from = std::max(wanted.first, s.chunk->first);
      const int64_t to = std::min(end, s.chunk->first + s.chunk->count);
      steps->push_back(
          {.file = s.file,
           .file_offset = s.chunk->offset + (from - s.chunk->first) * size,
           .region = wanted.region,
           .region_offset = wanted.offset + (from - wanted.first) * size,
           .row_bytes = static_cast<uint64_t>((to - from) * size)});
      covered += to - from;
    });
    return covered;
  }
  for (const Box& wanted_box : wanted_boxes) {
    const std::optional<Box> inside = Intersect(wanted_box, part);
    if (!inside.has_value()) continue;
    each_in(IndexIn(part, *inside), EndIn(part, *inside), [&](const Stored& s) {
      for (const Box& box : BoxesOfRun(part, s.chunk->first, s.chunk->count)) {
        const std::optional<Box> both = Intersect(box, *inside);
        if (!both.has_value()) continue;
        AppendBox(wanted, s, *both, size, steps);
        covered += both->elements();
      }
    });
  }
  return covered;
}

std::string Describe(const ItemSpec& item) {
  return absl::StrFormat("%s[%s]", NameOf(item.dtype),
                         absl::StrJoin(item.shape, ","));
}

// The manifest's number for each wanted item that `wanted` uses.
absl::StatusOr<std::vector<ItemIndex>> MatchItems(
    const Manifest& saved, const std::vector<ItemSpec>& wanted_items,
    const std::vector<bool>& is_used) {
  std::vector<ItemIndex> matched(wanted_items.size());
  for (size_t i = 0; i < wanted_items.size(); ++i) {
    if (!is_used[i]) continue;
    const ItemSpec& item = wanted_items[i];
    const auto found = std::lower_bound(
        saved.items.begin(), saved.items.end(), item,
        [](const ItemSpec& a, const ItemSpec& b) {
          return std::tie(a.name, a.kind) < std::tie(b.name, b.kind);
        });
    if (found == saved.items.end() || found->name != item.name ||
        found->kind != item.kind) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "item '%s' (%s): the checkpoint does not have it, the job wants %s",
          item.name, item.kind, Describe(item)));
    }
    if (*found != item) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "item '%s' (%s): the checkpoint has %s, the job wants %s", item.name,
          item.kind, Describe(*found), Describe(item)));
    }
    matched[i] = static_cast<ItemIndex>(found - saved.items.begin());
  }
  return matched;
}

}  // namespace

void SortAndJoin(std::vector<ReadStep>* steps) {
  std::sort(
      steps->begin(), steps->end(), [](const ReadStep& a, const ReadStep& b) {
        return std::tie(a.file, a.file_offset, a.region, a.region_offset) <
               std::tie(b.file, b.file_offset, b.region, b.region_offset);
      });
  size_t kept = 0;
  for (const ReadStep& step : *steps) {
    if (kept > 0) {
      ReadStep& last = (*steps)[kept - 1];
      if (last.rows == 1 && step.rows == 1 && last.file == step.file &&
          last.region == step.region &&
          last.file_offset + last.row_bytes == step.file_offset &&
          last.region_offset + last.row_bytes == step.region_offset) {
        last.row_bytes += step.row_bytes;
        continue;
      }
    }
    (*steps)[kept++] = step;
  }
  steps->resize(kept);
}

struct LoadPlanner::Data {
  const std::vector<ItemSpec>* items;
  std::vector<ItemIndex> matched;
  StoredIndex index;
};

LoadPlanner::LoadPlanner(std::unique_ptr<Data> data) : data_(std::move(data)) {}
LoadPlanner::LoadPlanner(LoadPlanner&&) noexcept = default;
LoadPlanner::~LoadPlanner() = default;

absl::StatusOr<LoadPlanner> LoadPlanner::Create(
    const Manifest& saved, const std::vector<ItemSpec>& wanted_items,
    const std::vector<bool>& is_used) {
  HF_ASSIGN_OR_RETURN(std::vector<ItemIndex> matched,
                      MatchItems(saved, wanted_items, is_used));
  std::vector<bool> is_wanted(saved.items.size());
  for (size_t i = 0; i < matched.size(); ++i) {
    if (is_used[i]) is_wanted[matched[i]] = true;
  }
  return LoadPlanner(std::make_unique<Data>(
      Data{&wanted_items, std::move(matched), StoredIndex(saved, is_wanted)}));
}

absl::Status LoadPlanner::Append(const Fragment& f,
                                 std::vector<ReadStep>* steps) const {
  const ItemSpec& item = (*data_->items)[f.item];
  const std::vector<Box> boxes = BoxesOfRun(f.part, f.first, f.count);
  int64_t covered = 0;
  data_->index.EachPart(
      data_->matched[f.item], [&](std::span<const Stored> stored) {
        covered += AppendMeeting(f, boxes, stored, SizeOf(item.dtype), steps);
      });
  if (covered == f.count) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "item '%s' (%s): the checkpoint has %d of the %d wanted elements from "
      "element %d of %s on",
      item.name, item.kind, covered, f.count, f.first, ToString(f.part)));
}

ItemIndex LoadPlanner::SavedItem(ItemIndex wanted) const {
  return data_->matched[wanted];
}

absl::StatusOr<LoadPlan> PlanLoad(const Manifest& saved,
                                  const std::vector<ItemSpec>& wanted_items,
                                  const Holding& wanted) {
  std::vector<bool> is_used(wanted_items.size());
  for (const Fragment& f : wanted.fragments) {
    HF_CHECK(f.item < wanted_items.size(), "a fragment of item %d of %d",
             f.item, wanted_items.size());
    is_used[f.item] = true;
  }
  HF_ASSIGN_OR_RETURN(const LoadPlanner planner,
                      LoadPlanner::Create(saved, wanted_items, is_used));
  LoadPlan plan;
  for (const Fragment& f : wanted.fragments) {
    HF_RETURN_IF_ERROR(planner.Append(f, &plan.steps));
    plan.bytes_wanted +=
        static_cast<uint64_t>(f.count * SizeOf(wanted_items[f.item].dtype));
  }
  SortAndJoin(&plan.steps);
  return plan;
}

}  // namespace holdfast::ckpt
