// ckpt/plan/save_plan.cc: fragments to chunks, chunks to units, units to the
// order of the optimizer's walk.

#include "ckpt/plan/save_plan.h"

#include <algorithm>
#include <tuple>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

uint64_t NextBlock(uint64_t offset) {
  return (offset + kShardBlockBytes - 1) / kShardBlockBytes * kShardBlockBytes;
}

// The units of one region, in memory order.
struct RegionUnits {
  std::vector<WriteUnit> units;
  uint64_t file_first = 0;  // where the region's bytes begin in the file
  uint64_t bytes = 0;       // of them
  size_t next = 0;          // the unit to be written next
};

// Appends [region_offset, + bytes) as units; continues the last unit of a run
// that has no hole before it.
void AppendUnits(uint32_t region, uint64_t region_offset, uint64_t file_offset,
                 uint64_t bytes, std::vector<WriteUnit>* units) {
  while (bytes > 0) {
    const bool joins =
        !units->empty() && units->back().bytes < kUnitBytesMax &&
        units->back().region_offset + units->back().bytes == region_offset;
    if (!joins) {
      units->push_back({.region = region,
                        .region_offset = region_offset,
                        .file_offset = file_offset});
    }
    WriteUnit& unit = units->back();
    const uint64_t taken = std::min(bytes, kUnitBytesMax - unit.bytes);
    unit.bytes += static_cast<uint32_t>(taken);
    region_offset += taken;
    file_offset += taken;
    bytes -= taken;
  }
}

// True if `a`'s next unit starts at an earlier fraction of its region's stored
// bytes than `b`'s. At equal fractions the lower region goes first.
bool ComesBefore(const RegionUnits& a, const RegionUnits& b) {
  const auto position = [](const RegionUnits& r) {
    return r.units[r.next].file_offset - r.file_first;
  };
  using Wide = unsigned __int128;
  return Wide{position(a)} * b.bytes < Wide{position(b)} * a.bytes;
}

// What `unit` holds of `chunks`, which are sorted by offset.
void AppendPieces(const std::vector<ItemSpec>& items,
                  const std::vector<Chunk>& chunks, const WriteUnit& unit,
                  uint32_t unit_index, std::vector<DigestPiece>* pieces) {
  const uint64_t unit_end = unit.file_offset + unit.bytes;
  auto chunk =
      std::partition_point(chunks.begin(), chunks.end(), [&](const Chunk& c) {
        return c.offset + c.bytes_stored <= unit.file_offset;
      });
  for (; chunk != chunks.end() && chunk->offset < unit_end; ++chunk) {
    // Units and chunks start on multiples of 4096, so no element is cut.
    const uint64_t size = SizeOf(items[chunk->item].dtype);
    const uint64_t begin = std::max(chunk->offset, unit.file_offset);
    const uint64_t end =
        std::min(chunk->offset + chunk->bytes_stored, unit_end);
    pieces->push_back(
        {.unit = unit_index,
         .unit_offset = static_cast<uint32_t>(begin - unit.file_offset),
         .item = chunk->item,
         .part = chunk->part,
         .first = chunk->first +
                  static_cast<int64_t>((begin - chunk->offset) / size),
         .count = static_cast<int64_t>((end - begin) / size)});
  }
}

}  // namespace

SavePlan PlanSave(const std::vector<ItemSpec>& items, const Holding& stored) {
  std::vector<const Fragment*> fragments;
  fragments.reserve(stored.fragments.size());
  for (const Fragment& f : stored.fragments) fragments.push_back(&f);
  std::sort(fragments.begin(), fragments.end(),
            [](const Fragment* a, const Fragment* b) {
              return std::tie(a->region, a->offset) <
                     std::tie(b->region, b->offset);
            });

  SavePlan plan;
  std::vector<RegionUnits> regions(stored.region_bytes.size());
  uint64_t file_offset = kShardBlockBytes;
  const Fragment* last = nullptr;
  uint64_t last_end = 0;
  for (const Fragment* f : fragments) {
    HF_CHECK(f->item < items.size() && f->region < regions.size(),
             "a fragment of item %d of %d in region %d of %d", f->item,
             items.size(), f->region, regions.size());
    const uint64_t bytes =
        static_cast<uint64_t>(f->count) * SizeOf(items[f->item].dtype);
    const uint64_t padded = NextBlock(bytes);
    HF_CHECK(f->count > 0 && f->offset % kShardBlockBytes == 0 &&
                 f->offset + padded <= stored.region_bytes[f->region] &&
                 (last == nullptr || last->region != f->region ||
                  last_end <= f->offset),
             "'%s' %s: %d elements at byte %d of region %d, which has %d bytes",
             items[f->item].name, items[f->item].kind, f->count, f->offset,
             f->region, stored.region_bytes[f->region]);
    last = f;
    last_end = f->offset + padded;

    plan.chunks.push_back({.item = f->item,
                           .part = f->part,
                           .first = f->first,
                           .count = f->count,
                           .offset = file_offset,
                           .bytes_stored = bytes});
    RegionUnits& region = regions[f->region];
    if (region.units.empty()) region.file_first = file_offset;
    AppendUnits(f->region, f->offset, file_offset, padded, &region.units);
    region.bytes += padded;
    file_offset += padded;
    plan.data_bytes += bytes;
  }

  size_t unit_count = 0;
  for (const RegionUnits& region : regions) unit_count += region.units.size();
  plan.units.reserve(unit_count);
  while (plan.units.size() < unit_count) {
    RegionUnits* first = nullptr;
    for (RegionUnits& region : regions) {
      if (region.next == region.units.size()) continue;
      if (first == nullptr || ComesBefore(region, *first)) first = &region;
    }
    plan.units.push_back(first->units[first->next++]);
    AppendPieces(items, plan.chunks, plan.units.back(),
                 static_cast<uint32_t>(plan.units.size() - 1), &plan.pieces);
  }
  plan.index_offset = file_offset;
  plan.file_bytes = file_offset +
                    ShardIndexBytes(static_cast<uint32_t>(unit_count)) +
                    kShardBlockBytes;
  return plan;
}

}  // namespace holdfast::ckpt
