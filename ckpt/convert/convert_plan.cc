// ckpt/convert/convert_plan.cc: see convert_plan.h.

#include "ckpt/convert/convert_plan.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/types.h"
#include "ckpt/format/mix.h"
#include "ckpt/plan/file_names.h"
#include "ckpt/session/save_plans.h"

namespace holdfast::ckpt {
namespace {

// The place of element `index` of `part`'s row-major order in that of the whole
// item.
int64_t PlaceInItem(const ItemSpec& item, const Box& part, int64_t index) {
  int64_t place = 0;
  int64_t scale = 1;
  for (int d = part.dimensions - 1; d >= 0; --d) {
    place += (part.first[d] + index % part.count[d]) * scale;
    index /= part.count[d];
    scale *= item.shape[d];
  }
  return place;
}

// The chunk that byte `offset` of the file belongs to; every unit begins in
// one.
const Chunk& ChunkAt(const TargetFile& file, uint64_t offset) {
  const auto after = std::partition_point(
      file.chunks.begin(), file.chunks.end(),
      [offset](const Chunk& c) { return c.offset <= offset; });
  HF_CHECK(after != file.chunks.begin(), "no chunk at offset %d", offset);
  return *(after - 1);
}

TargetFile PlanFile(const JobLayout& target, Rank rank) {
  SavePlan saved = PlanSave(target.items(), target.StoredBy(rank));
  TargetFile file;
  file.chunks = std::move(saved.chunks);
  file.index_offset = saved.index_offset;
  file.file_bytes = saved.file_bytes;
  file.units.reserve(saved.units.size());
  for (const WriteUnit& unit : saved.units) {
    file.units.push_back({unit.file_offset, unit.bytes});
  }
  std::sort(file.units.begin(), file.units.end(),
            [](const TargetUnit& a, const TargetUnit& b) {
              return a.offset < b.offset;
            });
  return file;
}

// Units by the rows that they begin with: items in the order in which the
// files first name them, which is that of the layers.
void OrderUnits(const std::vector<ItemSpec>& items, ConvertPlan* plan) {
  std::vector<uint32_t> order_of_item(items.size(), UINT32_MAX);
  uint32_t next = 0;
  size_t units = 0;
  for (const TargetFile& file : plan->files) {
    for (const Chunk& chunk : file.chunks) {
      if (order_of_item[chunk.item] == UINT32_MAX) {
        order_of_item[chunk.item] = next++;
      }
    }
    units += file.units.size();
  }
  struct Key {
    uint32_t item;
    int64_t place;
    UnitRef ref;
  };
  std::vector<Key> keys;
  keys.reserve(units);
  for (uint32_t f = 0; f < plan->files.size(); ++f) {
    const TargetFile& file = plan->files[f];
    for (uint32_t u = 0; u < file.units.size(); ++u) {
      const uint64_t offset = file.units[u].offset;
      const Chunk& chunk = ChunkAt(file, offset);
      const ItemSpec& item = items[chunk.item];
      const auto skipped =
          static_cast<int64_t>((offset - chunk.offset) / SizeOf(item.dtype));
      keys.push_back({order_of_item[chunk.item],
                      PlaceInItem(item, chunk.part, chunk.first + skipped),
                      {f, u}});
    }
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return std::tie(a.item, a.place, a.ref.file, a.ref.unit) <
           std::tie(b.item, b.place, b.ref.file, b.ref.unit);
  });
  plan->order.reserve(units);
  for (const Key& key : keys) plan->order.push_back(key.ref);
}

void CutWindows(const ConvertPlanOptions& options, ConvertPlan* plan) {
  for (size_t i = 0; i < plan->order.size(); ++i) {
    const UnitRef& ref = plan->order[i];
    const uint64_t bytes = plan->files[ref.file].units[ref.unit].bytes;
    if (plan->windows.empty() ||
        plan->windows.back().bytes + bytes > options.window_bytes) {
      plan->windows.push_back({i, i, 0});
    }
    plan->windows.back().end = i + 1;
    plan->windows.back().bytes += bytes;
    plan->unit_bytes += bytes;
    plan->window_bytes_max =
        std::max(plan->window_bytes_max, plan->windows.back().bytes);
  }
  std::unordered_set<uint32_t> files;
  for (size_t w = 0; w < plan->windows.size(); ++w) {
    const bool is_full =
        !plan->rounds.empty() &&
        plan->rounds.back().bytes >=
            std::max(options.round_bytes,
                     options.round_bytes_per_file * files.size());
    if (plan->rounds.empty() || is_full) {
      plan->rounds.push_back({w, w, 0});
      files.clear();
    }
    const WindowPlan& window = plan->windows[w];
    for (size_t i = window.first; i < window.end; ++i) {
      files.insert(plan->order[i].file);
    }
    plan->rounds.back().end_window = w + 1;
    plan->rounds.back().bytes += window.bytes;
  }
}

}  // namespace

ConvertPlan PlanConversion(const JobLayout& target,
                           const ConvertPlanOptions& options) {
  ConvertPlan plan;
  SavePlans saves(&target, Rank{0}, options.files_per_dir);
  while (saves.PlanNext()) {
  }
  plan.layout_hash = saves.JobHash();
  for (uint32_t d = 0; d < saves.names().dirs(); ++d) {
    plan.dirs.push_back(saves.names().Dir(d));
  }
  for (int rank = 0; rank < target.world(); ++rank) {
    plan.files.push_back(PlanFile(target, Rank{rank}));
    TargetFile& file = plan.files.back();
    file.name = saves.names().NameOf(static_cast<uint32_t>(rank));
    plan.file_bytes += file.file_bytes;
    for (const Chunk& chunk : file.chunks) {
      plan.state_bytes += chunk.bytes_stored;
    }
  }
  OrderUnits(target.items(), &plan);
  CutWindows(options, &plan);
  plan.hash = Mix64(plan.layout_hash);
  for (const WindowPlan& window : plan.windows) {
    plan.hash = Mix64(plan.hash ^ window.end) + kGolden64;
  }
  for (const RoundPlan& round : plan.rounds) {
    plan.hash = Mix64(plan.hash ^ round.end_window) + kGolden64;
  }
  return plan;
}

std::vector<DigestPiece> PiecesOf(const std::vector<ItemSpec>& items,
                                  const TargetFile& file,
                                  const TargetUnit& unit) {
  std::vector<DigestPiece> pieces;
  const uint64_t end = unit.offset + unit.bytes;
  auto chunk = std::partition_point(
      file.chunks.begin(), file.chunks.end(), [&unit](const Chunk& c) {
        return c.offset + c.bytes_stored <= unit.offset;
      });
  for (; chunk != file.chunks.end() && chunk->offset < end; ++chunk) {
    const uint64_t size = SizeOf(items[chunk->item].dtype);
    const uint64_t from = std::max(chunk->offset, unit.offset);
    const uint64_t to = std::min(chunk->offset + chunk->bytes_stored, end);
    pieces.push_back(
        {.unit = 0,
         .unit_offset = static_cast<uint32_t>(from - unit.offset),
         .item = chunk->item,
         .part = chunk->part,
         .first =
             chunk->first + static_cast<int64_t>((from - chunk->offset) / size),
         .count = static_cast<int64_t>((to - from) / size)});
  }
  return pieces;
}

}  // namespace holdfast::ckpt
