// tools/convert/dcp/pickle_arena.h: memory for what the lists of a pickle hold.
// For pickle*.h alone.
//
// Millions of lists of two or three values: each in an allocation of its own
// would take five times their bytes. Nothing is given back before the end.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_ARENA_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace holdfast::tools {

// Values of one list, which may get more. Copying one does not copy them.
struct PickleList {
  uint32_t* data = nullptr;
  uint32_t size = 0;
  uint32_t room = 0;
};

class PickleArena {
 public:
  // What was taken from the system.
  size_t bytes() const { return bytes_; }

  // `list` and `more`, which do not overlap. The first values fit exactly; a
  // list that grows again is moved to twice the room, so that all of its places
  // together are at most three times the last. False: 2^32 values and more.
  bool Append(std::span<const uint32_t> more, PickleList* list) {
    const size_t size = list->size + more.size();
    if (size > UINT32_MAX) return false;
    if (size > list->room) {
      size_t room = list->room == 0
                        ? size
                        : std::max<size_t>(size, 2 * size_t{list->room});
      room = std::min<size_t>(room, UINT32_MAX);
      uint32_t* const data = Take(room);
      std::copy_n(list->data, list->size, data);
      list->data = data;
      list->room = static_cast<uint32_t>(room);
    }
    std::copy(more.begin(), more.end(), list->data + list->size);
    list->size = static_cast<uint32_t>(size);
    return true;
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 14;  // values

  uint32_t* Take(size_t count) {
    if (count > kBlock / 4) return NewBlock(count);
    if (count > left_) {
      next_ = NewBlock(kBlock);
      left_ = kBlock;
    }
    uint32_t* const data = next_;
    next_ += count;
    left_ -= count;
    return data;
  }
  uint32_t* NewBlock(size_t count) {
    blocks_.push_back(std::make_unique_for_overwrite<uint32_t[]>(count));
    bytes_ += count * sizeof(uint32_t);
    return blocks_.back().get();
  }

  std::vector<std::unique_ptr<uint32_t[]>> blocks_;
  uint32_t* next_ = nullptr;
  size_t left_ = 0;
  size_t bytes_ = 0;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_ARENA_H_
