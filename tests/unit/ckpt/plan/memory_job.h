// tests/unit/ckpt/plan/memory_job.h: a job whose memory and files are vectors.
// It saves by PlanSave into real shard files, with headers, units, index and
// footer, and loads by PlanLoad and Scatter. Every element's value follows from
// its item and its place in it, so that any element can be checked anywhere.

#ifndef HOLDFAST_TESTS_UNIT_CKPT_PLAN_MEMORY_JOB_H_
#define HOLDFAST_TESTS_UNIT_CKPT_PLAN_MEMORY_JOB_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/layout/holding.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/plan/scatter.h"

namespace holdfast::ckpt {

using Bytes = std::vector<std::byte>;

struct SavedJob {
  Manifest manifest;
  std::vector<Bytes> files;
};

// Calls visit(index, offset) for each element of `f`: its index in the item's
// row-major order, and the byte offset in the region.
template <typename Visit>
void ForEachElement(const ItemSpec& item, const Fragment& f, Visit visit) {
  const int last = f.part.dimensions - 1;
  const int64_t width = last < 0 ? 1 : f.part.count[last];
  uint64_t offset = f.offset;
  for (int64_t e = f.first; e < f.first + f.count; ++e) {
    int64_t rest = e / width;
    int64_t index = last < 0 ? 0 : f.part.first[last] + e % width;
    int64_t scale = last < 0 ? 1 : item.shape[last];
    for (int d = last - 1; d >= 0; --d) {
      index += (f.part.first[d] + rest % f.part.count[d]) * scale;
      rest /= f.part.count[d];
      scale *= item.shape[d];
    }
    visit(index, offset);
    offset += SizeOf(item.dtype);
  }
}

// What element `index` of the item with this digest of its names holds: never
// zero in any byte, so that bytes that were not written show.
inline uint64_t ValueOf(uint64_t item_key, int64_t index) {
  const uint64_t x =
      (item_key ^ static_cast<uint64_t>(index)) * 0x9e3779b97f4a7c15;
  return (x ^ x >> 29) | 0x0101010101010101;
}

inline uint64_t KeyOf(const ItemSpec& item) {
  return DigestBytes(item.name + "/" + item.kind).low;
}

inline std::vector<Bytes> ZeroMemory(const Holding& holding) {
  std::vector<Bytes> memory;
  for (const uint64_t bytes : holding.region_bytes) memory.emplace_back(bytes);
  return memory;
}

inline std::vector<Bytes> FilledMemory(const std::vector<ItemSpec>& items,
                                       const Holding& holding) {
  std::vector<Bytes> memory = ZeroMemory(holding);
  for (const Fragment& f : holding.fragments) {
    const ItemSpec& item = items[f.item];
    const uint64_t key = KeyOf(item);
    Bytes& region = memory[f.region];
    ForEachElement(item, f, [&](int64_t index, uint64_t offset) {
      const uint64_t value = ValueOf(key, index);
      std::memcpy(region.data() + offset, &value, SizeOf(item.dtype));
    });
  }
  return memory;
}

// The name and the ids of the checkpoint that SaveJob makes.
inline Manifest BlankManifest(const JobLayout& layout) {
  Manifest manifest;
  manifest.run_id.fill(7);
  manifest.id = {.step = 10, .incarnation = 1, .attempt = 1};
  manifest.commit_number = 1;
  manifest.world = layout.world();
  manifest.layout = layout.description();
  manifest.items = layout.items();
  manifest.item_digests.resize(manifest.items.size());
  manifest.attributes["step"] = "10";
  return manifest;
}

inline std::string ShardName(int rank) {
  return absl::StrFormat("shard-%05d.hf", rank);
}

// One rank's file, from its memory. Adds its chunks and digests to `manifest`.
inline Bytes SaveRank(const JobLayout& layout, int rank, Manifest* manifest) {
  const Holding holding = layout.StoredBy(Rank{rank});
  const std::vector<Bytes> memory = FilledMemory(layout.items(), holding);
  const SavePlan plan = PlanSave(layout.items(), holding);
  const ShardIdentity identity{
      .run_id = manifest->run_id,
      .id = manifest->id,
      .file = static_cast<uint32_t>(rank),
      .file_count = static_cast<uint32_t>(layout.world())};

  Bytes file(plan.file_bytes);
  const auto put = [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), file.begin() + offset);
  };
  put(0, EncodeShardHeader(identity));
  std::vector<Unit> units;
  for (const WriteUnit& unit : plan.units) {
    const auto bytes =
        std::span(memory[unit.region]).subspan(unit.region_offset, unit.bytes);
    put(unit.file_offset, bytes);
    units.push_back({unit.file_offset, unit.bytes, Crc32c(bytes)});
  }
  for (const DigestPiece& piece : plan.pieces) {
    const ItemSpec& item = layout.items()[piece.item];
    const WriteUnit& unit = plan.units[piece.unit];
    manifest->item_digests[piece.item] +=
        DigestRun(item, piece.part, piece.first, piece.count,
                  std::span(memory[unit.region])
                      .subspan(unit.region_offset + piece.unit_offset,
                               piece.count * SizeOf(item.dtype)));
  }
  const Bytes index = EncodeShardIndex(units);
  const uint32_t unit_count = static_cast<uint32_t>(units.size());
  put(plan.index_offset, index);
  put(plan.index_offset + index.size(),
      EncodeShardFooter(identity, plan.index_offset, unit_count,
                        Crc32c(index)));
  manifest->files.push_back({.name = ShardName(rank),
                             .bytes = plan.file_bytes,
                             .unit_count = unit_count,
                             .crc_index = Crc32c(index),
                             .chunks = plan.chunks});
  return file;
}

inline SavedJob SaveJob(const JobLayout& layout) {
  SavedJob saved{.manifest = BlankManifest(layout), .files = {}};
  for (int rank = 0; rank < layout.world(); ++rank) {
    saved.files.push_back(SaveRank(layout, rank, &saved.manifest));
  }
  return saved;
}

// Loads `rank` of `layout` into zeroed memory, in reads of at most
// `read_bytes_max`. Returns "" or what went wrong first: a status, a checksum,
// bytes not covered, an element that differs, or a byte that was written though
// nobody wanted it.
inline std::string LoadRank(const SavedJob& saved, const JobLayout& layout,
                            int rank, uint64_t read_bytes_max) {
  const Holding wanted = layout.WantedBy(Rank{rank});
  const auto plan = PlanLoad(saved.manifest, layout.items(), wanted);
  if (!plan.ok()) return plan.status().ToString();
  std::vector<Bytes> memory = ZeroMemory(wanted);
  std::vector<std::span<std::byte>> regions(memory.begin(), memory.end());
  const Scatter scatter(*plan);
  uint64_t copied = 0;
  for (const uint32_t f : scatter.files()) {
    const Bytes& file = saved.files[f];
    const auto footer = DecodeShardFooter(std::span(file).last(4096));
    if (!footer.ok()) return footer.status().ToString();
    const auto units = DecodeShardIndex(
        std::span(file).subspan(footer->index_offset,
                                ShardIndexBytes(footer->unit_count)),
        footer->unit_count);
    if (!units.ok()) return units.status().ToString();
    for (const UnitRead& read :
         scatter.UnitsToRead(f, *units, read_bytes_max)) {
      for (uint32_t u = read.first_unit; u < read.first_unit + read.unit_count;
           ++u) {
        const Unit& unit = (*units)[u];
        if (Crc32c(std::span(file).subspan(unit.offset, unit.bytes)) !=
            unit.crc) {
          return absl::StrFormat("file %d: unit %d is damaged", f, u);
        }
      }
      copied += scatter.ScatterBytes(
          f, read.offset, std::span(file).subspan(read.offset, read.bytes),
          regions);
    }
  }
  if (copied != plan->bytes_wanted) {
    return absl::StrFormat("%d of %d bytes were scattered", copied,
                           plan->bytes_wanted);
  }
  if (memory != FilledMemory(layout.items(), wanted)) {
    return "the memory is not what was wanted";
  }
  return "";
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_PLAN_MEMORY_JOB_H_
