// ckpt/plan/scatter.cc: which steps meet a range of a file, and their copies.

#include "ckpt/plan/scatter.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

uint64_t EndInFile(const ReadStep& step) {
  return step.file_offset + (step.rows - 1) * step.file_stride + step.row_bytes;
}

}  // namespace

void AddToReads(uint32_t number, const Unit& unit, uint64_t bytes_max,
                std::vector<UnitRead>* reads) {
  if (!reads->empty()) {
    UnitRead& last = reads->back();
    if (last.offset + last.bytes == unit.offset &&
        last.bytes + unit.bytes <= bytes_max) {
      last.bytes += unit.bytes;
      ++last.unit_count;
      return;
    }
  }
  reads->push_back({.offset = unit.offset,
                    .bytes = unit.bytes,
                    .first_unit = number,
                    .unit_count = 1});
}

Scatter::Scatter(const LoadPlan& plan) : steps_(plan.steps) {
  end_so_far_.reserve(steps_.size());
  for (const ReadStep& step : steps_) {
    uint64_t end = EndInFile(step);
    if (files_.empty() || files_.back() != step.file) {
      files_.push_back(step.file);
    } else {
      end = std::max(end, end_so_far_.back());
    }
    end_so_far_.push_back(end);
  }
}

template <typename Visit>
void Scatter::EachMeeting(uint32_t file, uint64_t begin, uint64_t end,
                          Visit visit) const {
  // Steps are sorted by their start, so those that start before `end` come
  // first; going back from there, none is left once all ends lie before
  // `begin`.
  const auto stop = std::partition_point(
      steps_.begin(), steps_.end(), [&](const ReadStep& step) {
        return step.file < file ||
               (step.file == file && step.file_offset < end);
      });
  for (size_t i = stop - steps_.begin(); i-- > 0;) {
    const ReadStep& step = steps_[i];
    if (step.file != file || end_so_far_[i] <= begin) return;
    if (EndInFile(step) <= begin) continue;
    uint64_t first = 0;
    uint64_t last = 0;
    if (step.rows > 1) {
      // The first row that ends after `begin`, and the last that starts before
      // `end`.
      const uint64_t row_end = step.file_offset + step.row_bytes;
      if (row_end <= begin) first = (begin - row_end) / step.file_stride + 1;
      last = std::min(step.rows - 1,
                      (end - 1 - step.file_offset) / step.file_stride);
    }
    if (first <= last && !visit(step, first, last + 1)) return;
  }
}

template <typename Visit>
void Scatter::EachPiece(uint32_t file, uint64_t begin, uint64_t end,
                        Visit visit) const {
  EachMeeting(file, begin, end,
              [&](const ReadStep& step, uint64_t first_row, uint64_t end_row) {
                for (uint64_t row = first_row; row < end_row; ++row) {
                  const uint64_t row_begin =
                      step.file_offset + row * step.file_stride;
                  visit(step, row, std::max(row_begin, begin),
                        std::min(row_begin + step.row_bytes, end));
                }
                return true;
              });
}

bool Scatter::Wants(uint32_t file, uint64_t begin, uint64_t end) const {
  bool wants = false;
  EachMeeting(file, begin, end, [&](const ReadStep&, uint64_t, uint64_t) {
    wants = true;
    return false;
  });
  return wants;
}

std::vector<UnitRead> Scatter::UnitsToRead(uint32_t file,
                                           std::span<const Unit> units,
                                           uint64_t bytes_max) const {
  std::vector<UnitRead> reads;
  for (uint32_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    if (!Wants(file, unit.offset, unit.offset + unit.bytes)) continue;
    AddToReads(i, unit, bytes_max, &reads);
  }
  return reads;
}

std::byte* Scatter::Place(const ReadStep& step, uint64_t row, uint64_t from,
                          std::span<const std::span<std::byte>> regions) {
  HF_CHECK(step.region < regions.size() &&
               step.region_offset + (step.rows - 1) * step.region_stride +
                       step.row_bytes <=
                   regions[step.region].size(),
           "a step into region %d of %d, offset %d", step.region,
           regions.size(), step.region_offset);
  return regions[step.region].data() + OffsetOf(step, row, from);
}

std::span<std::byte> Scatter::PlaceOf(
    uint32_t file, uint64_t offset, uint64_t size,
    std::span<const std::span<std::byte>> regions,
    const Padding& padding) const {
  // Bytes [from, to) of the file, and where in a region the first of them goes.
  struct Piece {
    uint64_t from = 0;
    uint64_t to = 0;
    uint32_t region = 0;
    uint64_t at = 0;
  };
  // What lies in more pieces than a unit has tensors is not in one place.
  constexpr size_t kPiecesMax = 64;
  std::vector<Piece> pieces;
  const uint64_t end = offset + size;
  EachMeeting(
      file, offset, end,
      [&](const ReadStep& step, uint64_t first_row, uint64_t end_row) {
        if (pieces.size() + (end_row - first_row) > kPiecesMax) {
          pieces.clear();
          return false;
        }
        for (uint64_t row = first_row; row < end_row; ++row) {
          const uint64_t row_begin = step.file_offset + row * step.file_stride;
          const uint64_t from = std::max(row_begin, offset);
          pieces.push_back({from, std::min(row_begin + step.row_bytes, end),
                            step.region,
                            step.region_offset + row * step.region_stride +
                                (from - row_begin)});
        }
        return true;
      });
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.from < b.from; });
  for (const Piece& first : pieces) {
    if (first.from != offset) break;
    const auto is_padding = [&](uint64_t from, uint64_t to) {
      return from == to ||
             (padding.InFile(file, from, to) &&
              padding.InRegion(first.region, first.at + (from - offset),
                               first.at + (to - offset)));
    };
    uint64_t placed = offset;
    for (const Piece& piece : pieces) {
      if (piece.region == first.region && piece.from >= placed &&
          piece.at == first.at + (piece.from - offset) &&
          is_padding(placed, piece.from)) {
        placed = piece.to;
      }
    }
    if (!is_padding(placed, end)) continue;
    HF_CHECK(first.region < regions.size() &&
                 first.at + size <= regions[first.region].size(),
             "a step into region %d of %d, offset %d", first.region,
             regions.size(), first.at);
    std::byte* const memory = regions[first.region].data() + first.at;
    if (reinterpret_cast<uintptr_t>(memory) % AlignedBuffer::kAlignment == 0) {
      return {memory, size};
    }
  }
  return {};
}

uint64_t Scatter::ScatterBytes(
    uint32_t file, uint64_t offset, std::span<const std::byte> bytes,
    std::span<const std::span<std::byte>> regions) const {
  uint64_t copied = 0;
  EachPiece(
      file, offset, offset + bytes.size(),
      [&](const ReadStep& step, uint64_t row, uint64_t from, uint64_t to) {
        std::byte* const to_memory = Place(step, row, from, regions);
        const std::byte* const from_memory = bytes.data() + (from - offset);
        if (to_memory != from_memory) {
          std::memcpy(to_memory, from_memory, to - from);
        }
        copied += to - from;
      });
  return copied;
}

uint64_t Scatter::ScatterBytes(uint32_t file, uint64_t offset,
                               std::span<const std::byte> bytes,
                               const PutBytes& put) const {
  uint64_t copied = 0;
  EachPiece(
      file, offset, offset + bytes.size(),
      [&](const ReadStep& step, uint64_t row, uint64_t from, uint64_t to) {
        put(step.region, OffsetOf(step, row, from),
            bytes.subspan(from - offset, to - from));
        copied += to - from;
      });
  return copied;
}

void Scatter::AppendPacked(uint32_t file, uint64_t offset,
                           std::span<const std::byte> bytes,
                           std::vector<std::byte>* packed) const {
  EachPiece(file, offset, offset + bytes.size(),
            [&](const ReadStep&, uint64_t, uint64_t from, uint64_t to) {
              const auto piece = bytes.subspan(from - offset, to - from);
              packed->insert(packed->end(), piece.begin(), piece.end());
            });
}

uint64_t Scatter::PackedBytes(uint32_t file, uint64_t begin,
                              uint64_t end) const {
  uint64_t sum = 0;
  EachPiece(file, begin, end,
            [&](const ReadStep&, uint64_t, uint64_t from, uint64_t to) {
              sum += to - from;
            });
  return sum;
}

void Scatter::ScatterPacked(
    uint32_t file, uint64_t begin, uint64_t end,
    std::span<const std::byte> packed,
    std::span<const std::span<std::byte>> regions) const {
  size_t at = 0;
  EachPiece(
      file, begin, end,
      [&](const ReadStep& step, uint64_t row, uint64_t from, uint64_t to) {
        HF_CHECK(to - from <= packed.size() - at, "%d packed bytes are few",
                 packed.size());
        std::memcpy(Place(step, row, from, regions), packed.data() + at,
                    to - from);
        at += to - from;
      });
  HF_CHECK(at == packed.size(), "%d of %d packed bytes have a place", at,
           packed.size());
}

void Scatter::ScatterPacked(uint32_t file, uint64_t begin, uint64_t end,
                            std::span<const std::byte> packed,
                            const PutBytes& put) const {
  size_t at = 0;
  EachPiece(
      file, begin, end,
      [&](const ReadStep& step, uint64_t row, uint64_t from, uint64_t to) {
        HF_CHECK(to - from <= packed.size() - at, "%d packed bytes are few",
                 packed.size());
        put(step.region, OffsetOf(step, row, from),
            packed.subspan(at, to - from));
        at += to - from;
      });
  HF_CHECK(at == packed.size(), "%d of %d packed bytes have a place", at,
           packed.size());
}

}  // namespace holdfast::ckpt
