// ckpt/plan/padding.cc: two binary searches.

#include "ckpt/plan/padding.h"

#include <algorithm>

#include "ckpt/base/aligned_buffer.h"

namespace holdfast::ckpt {

Padding::Padding(const Manifest* manifest, const std::vector<ItemSpec>& items,
                 const Holding& wanted)
    : manifest_(manifest) {
  ends_.reserve(wanted.fragments.size());
  for (const Fragment& fragment : wanted.fragments) {
    ends_.emplace_back(
        fragment.region,
        fragment.offset + fragment.count * SizeOf(items[fragment.item].dtype));
  }
  std::sort(ends_.begin(), ends_.end());
}

bool Padding::InRegion(uint32_t region, uint64_t begin, uint64_t end) const {
  return end <= RoundUp(begin, AlignedBuffer::kAlignment) &&
         std::binary_search(ends_.begin(), ends_.end(),
                            std::pair(region, begin));
}

bool Padding::InFile(uint32_t file, uint64_t begin, uint64_t end) const {
  const std::vector<Chunk>& chunks = manifest_->files[file].chunks;
  // Chunks lie apart and by offset.
  const auto after = std::partition_point(
      chunks.begin(), chunks.end(), [begin](const Chunk& chunk) {
        return chunk.offset + chunk.bytes_stored <= begin;
      });
  return after == chunks.end() || after->offset >= end;
}

}  // namespace holdfast::ckpt
