// ckpt/snapshot/snapshot.cc: what every snapshot shares: waiting and look-up.

#include "ckpt/snapshot/snapshot.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

// Long enough to leave the core to the writer, short beside the write of a unit
// (1 MiB at 2 GB/s: 0.5 ms).
constexpr absl::Duration kNap = absl::Microseconds(50);

}  // namespace

void BlockingWrite(Snapshot& snapshot, Clock& clock, absl::Duration patience,
                   uint32_t region, uint64_t offset, uint64_t bytes) {
  if (!snapshot.armed() || snapshot.TryWrite(region, offset, bytes)) return;
  const absl::Duration start = clock.Monotonic();
  while (true) {
    clock.Sleep(kNap);
    const bool free = snapshot.TryWrite(region, offset, bytes);
    const absl::Duration waited = clock.Monotonic() - start;
    if (free) {
      snapshot.AddWait(waited);
      return;
    }
    if (waited >= patience) {
      snapshot.Poison(absl::ResourceExhaustedError(absl::StrFormat(
          "the optimizer waited %d ms (checkpoint.fence_ms) for bytes %d-%d of "
          "region %d to be written, and went on",
          absl::ToInt64Milliseconds(waited), offset, offset + bytes - 1,
          region)));
      snapshot.AddWait(waited);
      HF_CHECK(snapshot.TryWrite(region, offset, bytes),
               "a poisoned snapshot holds nobody up");
      return;
    }
  }
}

UnitIndex::UnitIndex(std::span<const SnapshotUnit> units, size_t regions)
    : regions_(regions) {
  for (size_t i = 0; i < units.size(); ++i) {
    HF_CHECK(units[i].region < regions, "unit %d: region %d of %d", i,
             units[i].region, regions);
    regions_[units[i].region].push_back(
        {units[i].offset, units[i].offset + units[i].bytes, i});
  }
  for (std::vector<Place>& places : regions_) {
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.first < b.first; });
    for (size_t i = 1; i < places.size(); ++i) {
      HF_CHECK(places[i - 1].end <= places[i].first, "units %d and %d overlap",
               places[i - 1].unit, places[i].unit);
    }
  }
}

size_t UnitIndex::FirstEndingAfter(const std::vector<Place>& places,
                                   uint64_t offset) {
  return std::partition_point(
             places.begin(), places.end(),
             [offset](const Place& place) { return place.end <= offset; }) -
         places.begin();
}

}  // namespace holdfast::ckpt
