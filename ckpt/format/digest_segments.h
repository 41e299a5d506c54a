// ckpt/format/digest_segments.h: the inner sums of the logical digest. Private
// to ckpt/format/digest.cc and its test; ckpt/FORMAT.md states the arithmetic.

#ifndef HOLDFAST_CKPT_FORMAT_DIGEST_SEGMENTS_H_
#define HOLDFAST_CKPT_FORMAT_DIGEST_SEGMENTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ckpt/format/digest.h"

namespace holdfast::ckpt {

// Elements [first, first + count) of segment `index`; `size` is an element's
// bytes: 1, 2, 4 or 8.
void AddPartOfSegment(int size, const std::byte* data, int64_t first,
                      int64_t count, const Digest128& key, uint64_t index,
                      Digest128* sum);

// Adds `segments` whole segments, from number `index` on, that lie one after
// the other at `data`, at any address.
struct SegmentSums {
  std::string_view name;  // the instruction set
  void (*add)(int size, const std::byte* data, int64_t segments,
              const Digest128& key, uint64_t index, Digest128* sum);
};

// All that this processor can run, the fastest first. They agree to the bit:
// the arithmetic is exact, modulo 2^64.
std::vector<SegmentSums> ListSegmentSums();

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_DIGEST_SEGMENTS_H_
