// ckpt/convert/convert_plan.h: what a conversion writes, in which order, in
// which steps. Pure arithmetic over a layout: the same on every rank and in
// every try, so that one can go on where another was killed.
//
//   file     what a save of that layout would write (ckpt/plan/save_plan.h)
//   unit     a checksummed piece of a file, at most 1 MiB
//   window   units that are filled, hashed and written together
//   round    windows that are synced and recorded together
//
// Units are taken in the order of the tensors' rows, not of the files, so that
// a source's bytes are wanted about once: of a matrix whose columns go to eight
// files, the eight units of the same rows follow each other.
//
//   rows 0-255   | file 0 | file 1 | ... | file 7 |    one window
//   rows 256-511 | file 0 | file 1 | ... | file 7 |    the next
//
// Memory: 28 bytes a unit, 28 GB of state a MB, and the layout's chunks.

#ifndef HOLDFAST_CKPT_CONVERT_CONVERT_PLAN_H_
#define HOLDFAST_CKPT_CONVERT_CONVERT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"
#include "ckpt/plan/save_plan.h"

namespace holdfast::ckpt {

struct TargetUnit {
  uint64_t offset = 0;  // in the file's plain image
  uint32_t bytes = 0;
};

struct TargetFile {
  std::string name;               // in the checkpoint's directory
  std::vector<Chunk> chunks;      // by offset
  std::vector<TargetUnit> units;  // by offset
  uint64_t index_offset = 0;      // where the data end
  uint64_t file_bytes = 0;        // without a codec
};

struct UnitRef {
  uint32_t file = 0;
  uint32_t unit = 0;
  friend bool operator==(const UnitRef&, const UnitRef&) = default;
};

// A range of ConvertPlan::order.
struct WindowPlan {
  size_t first = 0;
  size_t end = 0;
  uint64_t bytes = 0;
};

// A range of ConvertPlan::windows.
struct RoundPlan {
  size_t first_window = 0;
  size_t end_window = 0;
  uint64_t bytes = 0;
};

struct ConvertPlanOptions {
  // A window has at least one unit.
  uint64_t window_bytes = uint64_t{16} << 20;
  // A round ends after so much, and not before so much for each file that it
  // touches, since each is synced.
  uint64_t round_bytes = uint64_t{4} << 30;
  uint64_t round_bytes_per_file = uint64_t{64} << 20;
  uint32_t files_per_dir = 1024;
};

struct ConvertPlan {
  std::vector<TargetFile> files;
  std::vector<std::string> dirs;  // to be made in the checkpoint's directory
  std::vector<UnitRef> order;
  std::vector<WindowPlan> windows;
  std::vector<RoundPlan> rounds;
  uint64_t unit_bytes = 0;  // of all units
  uint64_t window_bytes_max = 0;
  uint64_t state_bytes = 0;  // of the items
  uint64_t file_bytes = 0;   // of all files, without a codec
  uint64_t layout_hash = 0;  // as a save of the layout has it
  uint64_t hash = 0;         // of the layout and the order of units
};

ConvertPlan PlanConversion(const JobLayout& target,
                           const ConvertPlanOptions& options);

// What lies in one unit of a file, as DigestPiece: `unit` is 0.
std::vector<DigestPiece> PiecesOf(const std::vector<ItemSpec>& items,
                                  const TargetFile& file,
                                  const TargetUnit& unit);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CONVERT_PLAN_H_
