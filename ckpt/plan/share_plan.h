// ckpt/plan/share_plan.h: who reads what for whom, so that the whole job reads
// each stored byte once.
//
// Two ranks that want parts of one unit would both have to read all of it: the
// halves of every row of a matrix that is cut by columns, or the two sides of a
// cut that falls into a unit. So a file is cut into windows at fixed offsets,
// and of the ranks that want bytes of a window one reads it for all:
//
//   units    |  0  |  1  |  2  |  3  |  4  |       a unit belongs to the window
//   windows  |      0      |      1      |         that its first byte lies in
//   wanted   a a a b a b a b b b b b b b b
//   read     |a: 0, 1, 2         |b: 3, 4  |       a sends b its part of 1 and
//   2
//
// Where units lie stands in a file's index alone, which only its readers see.
// Windows need nothing but the manifest and the job's layout, so that any rank
// can work out its part without a word from another.
//
// Pure. Any thread. Cost at 5,120 ranks: the holdings of all ranks, and steps
// for those of them that want items of the same files; below a second
// (tests/bench/exchange_bench.cc).

#ifndef HOLDFAST_CKPT_PLAN_SHARE_PLAN_H_
#define HOLDFAST_CKPT_PLAN_SHARE_PLAN_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/layout/holding.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/scatter.h"

namespace holdfast::ckpt {

struct ShareOptions {
  // One read's worth (UnitReaderOptions). The same on all ranks.
  uint64_t window_bytes = uint64_t{4} << 20;
};

struct SharePlan {
  // Bytes [begin, end) of a file: this rank reads the units that begin there.
  struct Range {
    uint32_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  // A rank that wants something of what this one reads.
  struct Receiver {
    Rank rank{};
    LoadPlan wants;  // at least its own plan's steps in `reads`
  };

  LoadPlan own;                     // everything that this rank wants
  std::vector<Range> reads;         // ascending, apart
  std::vector<Receiver> receivers;  // by rank
  std::vector<Rank> senders;        // who may read something for this rank
};

// `wanted_by` says what each of `world` ranks wants, in terms of
// `wanted_items`. Errors as PlanLoad.
absl::StatusOr<SharePlan> PlanShare(
    const Manifest& saved, const std::vector<ItemSpec>& wanted_items, int world,
    Rank self, const std::function<Holding(Rank)>& wanted_by,
    const ShareOptions& options = {});

// The reads of a plan, which outlives this.
class SharedReads {
 public:
  explicit SharedReads(const SharePlan& plan);

  const Scatter& own() const { return own_; }
  // By receiver.
  const std::vector<Scatter>& receivers() const { return receivers_; }
  // Those to be opened, in order.
  const std::vector<uint32_t>& files() const { return files_; }
  // As Scatter's: the units of this rank's ranges that anyone wants.
  std::vector<UnitRead> UnitsToRead(uint32_t file, std::span<const Unit> units,
                                    uint64_t bytes_max) const;

 private:
  const SharePlan& plan_;
  const Scatter own_;
  std::vector<Scatter> receivers_;
  std::vector<uint32_t> files_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_SHARE_PLAN_H_
