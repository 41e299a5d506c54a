// ckpt/snapshot/copy_plan.cc: see copy_plan.h.

#include "ckpt/snapshot/copy_plan.h"

#include <algorithm>
#include <map>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

// Of one copy, at least, where the arena has room: a bus of 50 GB/s takes 160
// us for it, against some microseconds between two copies.
constexpr uint64_t kCopyBytes = uint64_t{8} << 20;
// Copies that are begun at once, at most about: a device's queue takes some
// hundreds and then holds up who launches.
constexpr uint64_t kCopiesMax = 256;
// A range's size has 32 bits.
constexpr uint64_t kCopyBytesMax = uint64_t{1} << 30;

// Joins neighbours to at most `bytes_max`; 0: each unit is a copy.
CopyPlan Group(std::span<const SnapshotUnit> units, uint64_t bytes_max) {
  CopyPlan plan;
  std::map<uint32_t, uint32_t> last;  // by region: its newest copy
  for (const SnapshotUnit& unit : units) {
    const auto found = last.find(unit.region);
    if (found != last.end()) {
      SnapshotUnit& copy = plan.copies[found->second];
      if (copy.offset + copy.bytes == unit.offset &&
          uint64_t{copy.bytes} + unit.bytes <= bytes_max) {
        copy.bytes += unit.bytes;
        ++plan.units_in[found->second];
        plan.copy_of.push_back(found->second);
        continue;
      }
    }
    const auto number = static_cast<uint32_t>(plan.copies.size());
    last[unit.region] = number;
    plan.copies.push_back(unit);
    plan.units_in.push_back(1);
    plan.copy_of.push_back(number);
  }
  return plan;
}

// The most copies of which, at any unit, some units were and some are to be
// written.
size_t OpenAtOnce(const CopyPlan& plan) {
  std::vector<uint32_t> left = plan.units_in;
  size_t open = 0;
  size_t most = 0;
  for (const uint32_t copy : plan.copy_of) {
    if (left[copy] == plan.units_in[copy]) ++open;
    most = std::max(most, open);
    if (--left[copy] == 0) --open;
  }
  return most;
}

void GiveSlots(uint64_t slot_bytes, size_t slots, CopyPlan* plan) {
  slots = std::min(slots, plan->copies.size());
  for (size_t i = 0; i < slots; ++i) plan->places.push_back(i * slot_bytes);
  plan->arena_bytes = slots * slot_bytes;
}

}  // namespace

CopyPlan PlanCopies(std::span<const SnapshotUnit> units, uint64_t arena_bytes) {
  uint64_t total = 0;
  uint64_t largest = 0;
  for (const SnapshotUnit& unit : units) {
    total += unit.bytes;
    largest = std::max<uint64_t>(largest, unit.bytes);
  }
  if (arena_bytes == 0) arena_bytes = total;
  arena_bytes = std::min(arena_bytes, total);
  uint64_t copy_bytes =
      std::clamp(RoundUp(arena_bytes / kCopiesMax, size_t{1} << 20), kCopyBytes,
                 kCopyBytesMax);
  if (arena_bytes == total) {
    CopyPlan plan = Group(units, copy_bytes);
    for (const SnapshotUnit& copy : plan.copies) {
      plan.places.push_back(plan.arena_bytes);
      plan.arena_bytes += copy.bytes;
    }
    return plan;
  }
  // As large as leaves each region that is being written one slot and one more.
  constexpr uint64_t kPage = AlignedBuffer::kAlignment;
  for (; copy_bytes >= largest; copy_bytes = copy_bytes / 2 / kPage * kPage) {
    if (copy_bytes == 0) break;
    CopyPlan plan = Group(units, copy_bytes);
    const uint64_t slots = arena_bytes / copy_bytes;
    if (slots < 2 * OpenAtOnce(plan)) continue;
    GiveSlots(copy_bytes, slots, &plan);
    return plan;
  }
  CopyPlan plan = Group(units, 0);
  GiveSlots(largest, std::max<uint64_t>(1, arena_bytes / largest), &plan);
  return plan;
}

}  // namespace holdfast::ckpt
