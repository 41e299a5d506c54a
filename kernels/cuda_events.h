// kernels/cuda_events.h: events that are used again once they have passed.
//
// An Event is a number that is never used twice; while it is open it has one of
// the runtime's events, which goes back to the pool when someone finds it
// passed. Who waits for one pins it, so that it is not recorded anew meanwhile.
//
// Handle is the runtime's event; plain C++, so that it is tested without one.
// Thread: the caller's lock is held around every call.

#ifndef HOLDFAST_KERNELS_CUDA_EVENTS_H_
#define HOLDFAST_KERNELS_CUDA_EVENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device.h"

namespace holdfast::kernels {

template <typename Handle>
class CudaEvents {
 public:
  // The handle of an open event, null for one that has passed. Valid until the
  // lock is given up, or until Unpin.
  Handle Find(Event event) const {
    const auto at = At(event);
    return at == open_.end() ? Handle{} : at->handle;
  }
  Handle Pin(Event event) {
    const auto at = At(event);
    if (at == open_.end()) return Handle{};
    ++at->pins;
    return at->handle;
  }
  void Unpin(Event event, bool passed) {
    const auto at = At(event);
    if (at == open_.end()) return;
    --at->pins;
    at->passed = at->passed || passed;
    if (at->passed && at->pins == 0) Retire(at);
  }
  // The event has been seen to have passed.
  void Passed(Event event) {
    const auto at = At(event);
    if (at == open_.end()) return;
    at->passed = true;
    if (at->pins == 0) Retire(at);
  }

  // A handle to record, null when the caller must make one. Before it gives up
  // it asks `has_passed(Handle)` of every open event, oldest first.
  template <typename HasPassed>
  Handle Take(const HasPassed& has_passed) {
    if (free_.empty()) {
      for (size_t i = 0; i < open_.size();) {
        Open& open = open_[i];
        open.passed = open.passed || has_passed(open.handle);
        if (open.passed && open.pins == 0) {
          Retire(open_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
    }
    if (free_.empty()) return Handle{};
    const Handle handle = free_.back();
    free_.pop_back();
    return handle;
  }
  // The recorded handle's event, behind the operation `after`: a literal.
  Event Add(Handle handle, const char* after = "nothing") {
    open_.push_back({++last_, handle, 0, false, after});
    return Event{last_};
  }
  // What it is behind; "nothing" for one that has passed.
  const char* After(Event event) const {
    const auto at = At(event);
    return at == open_.end() ? "nothing" : at->after;
  }
  void GiveBack(Handle handle) { free_.push_back(handle); }

  size_t open() const { return open_.size(); }
  size_t made() const { return open_.size() + free_.size(); }

  template <typename Destroy>
  void Clear(const Destroy& destroy) {
    for (const Open& open : open_) destroy(open.handle);
    for (const Handle handle : free_) destroy(handle);
    open_.clear();
    free_.clear();
  }

 private:
  struct Open {
    uint64_t id;
    Handle handle;
    int pins;
    bool passed;
    const char* after;
  };
  using Iterator = typename std::vector<Open>::iterator;
  using ConstIterator = typename std::vector<Open>::const_iterator;

  // Ids grow, so the vector is sorted.
  template <typename Vector>
  static auto In(Vector& open, Event event) {
    const auto id = static_cast<uint64_t>(event);
    const auto at = std::lower_bound(
        open.begin(), open.end(), id,
        [](const Open& entry, uint64_t wanted) { return entry.id < wanted; });
    return at != open.end() && at->id == id ? at : open.end();
  }
  Iterator At(Event event) { return In(open_, event); }
  ConstIterator At(Event event) const { return In(open_, event); }

  void Retire(Iterator at) {
    free_.push_back(at->handle);
    open_.erase(at);
  }

  std::vector<Open> open_;
  std::vector<Handle> free_;
  uint64_t last_ = 0;
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_EVENTS_H_
