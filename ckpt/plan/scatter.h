// ckpt/plan/scatter.h: from a load plan to reads of whole units, and from the
// bytes of a read to their places in memory.
//
// Pure, and without a copy of anything: what a Scatter knows beside the plan is
// two numbers a step. Any thread; const calls may run side by side as long as
// they scatter different bytes.

#ifndef HOLDFAST_CKPT_PLAN_SCATTER_H_
#define HOLDFAST_CKPT_PLAN_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ckpt/format/shard.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/padding.h"

namespace holdfast::ckpt {

// Units [first_unit, first_unit + unit_count) of a file's index, which lie one
// after the other in bytes [offset, offset + bytes).
struct UnitRead {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t first_unit = 0;
  uint32_t unit_count = 0;
  friend bool operator==(const UnitRead&, const UnitRead&) = default;
};

// Appends unit `number` of an index to `reads`: to the last of them if it lies
// right behind it and the two have at most `bytes_max`.
void AddToReads(uint32_t number, const Unit& unit, uint64_t bytes_max,
                std::vector<UnitRead>* reads);

// Stores `bytes` at `offset` of a region that is not plain memory.
using PutBytes = std::function<void(uint32_t region, uint64_t offset,
                                    std::span<const std::byte> bytes)>;

class Scatter {
 public:
  // `plan` outlives this and does not change.
  explicit Scatter(const LoadPlan& plan);

  // The files that any step reads, in order.
  const std::vector<uint32_t>& files() const { return files_; }

  // The units of `file` that any step needs a byte of, in file order;
  // neighbours are joined into reads of at most `bytes_max` (one unit is never
  // cut). `units` is the file's index: sorted, apart. Costs a binary search and
  // the steps it meets for each unit.
  std::vector<UnitRead> UnitsToRead(uint32_t file, std::span<const Unit> units,
                                    uint64_t bytes_max) const;

  // The one piece of the regions where bytes [offset, offset + size) of `file`
  // belong, if they all belong to one place, in this order and aligned for
  // direct I/O; else empty. Bytes that are padding on both sides may lie
  // between and after what is wanted.
  std::span<std::byte> PlaceOf(uint32_t file, uint64_t offset, uint64_t size,
                               std::span<const std::span<std::byte>> regions,
                               const Padding& padding) const;

  // `bytes` are those of `file` from `offset` on. Copies what any step wants of
  // them into `regions`, by number; returns how many bytes that were. After
  // every byte of UnitsToRead has passed, the returned numbers add up to
  // `plan.bytes_wanted`. Bytes that were read to PlaceOf count and stay.
  uint64_t ScatterBytes(uint32_t file, uint64_t offset,
                        std::span<const std::byte> bytes,
                        std::span<const std::span<std::byte>> regions) const;
  uint64_t ScatterBytes(uint32_t file, uint64_t offset,
                        std::span<const std::byte> bytes,
                        const PutBytes& put) const;

  // Does any step want a byte of [begin, end) of `file`?
  bool Wants(uint32_t file, uint64_t begin, uint64_t end) const;

  // For bytes that travel from the rank that read them to the one that wants
  // them: what the steps want of the range, packed without gaps, and back into
  // place. Both sides must have the same steps in that range; those outside of
  // it do not matter.
  void AppendPacked(uint32_t file, uint64_t offset,
                    std::span<const std::byte> bytes,
                    std::vector<std::byte>* packed) const;
  uint64_t PackedBytes(uint32_t file, uint64_t begin, uint64_t end) const;
  // `packed` has PackedBytes(file, begin, end) bytes (CHECK).
  void ScatterPacked(uint32_t file, uint64_t begin, uint64_t end,
                     std::span<const std::byte> packed,
                     std::span<const std::span<std::byte>> regions) const;
  void ScatterPacked(uint32_t file, uint64_t begin, uint64_t end,
                     std::span<const std::byte> packed,
                     const PutBytes& put) const;

 private:
  // Calls visit(step, first_row, end_row) for the rows of steps that have bytes
  // in [begin, end) of `file`, until it returns false.
  template <typename Visit>
  void EachMeeting(uint32_t file, uint64_t begin, uint64_t end,
                   Visit visit) const;
  // Calls visit(step, row, from, to) for each row's bytes [from, to) of `file`
  // that lie in [begin, end), always in the same order.
  template <typename Visit>
  void EachPiece(uint32_t file, uint64_t begin, uint64_t end,
                 Visit visit) const;

  static std::byte* Place(const ReadStep& step, uint64_t row, uint64_t from,
                          std::span<const std::span<std::byte>> regions);
  // Where the bytes from `from` on of a step's row land in its region.
  static uint64_t OffsetOf(const ReadStep& step, uint64_t row, uint64_t from) {
    return step.region_offset + row * step.region_stride +
           (from - step.file_offset - row * step.file_stride);
  }

  std::span<const ReadStep> steps_;
  // By step: the largest end, in the file, of it and of the steps of the same
  // file before it.
  std::vector<uint64_t> end_so_far_;
  std::vector<uint32_t> files_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_SCATTER_H_
