// ckpt/plan/padding.h: bytes that belong to nobody, in files and in memory.
//
// Fragments start on multiples of 4,096 bytes; what lies between the end of one
// and the next multiple is zero in every region (ckpt/layout/holding.h) and is
// stored as it is, since units are whole blocks. A read that brings such bytes
// of a file to such bytes of a region changes nothing.
//
// Pure; any thread.

#ifndef HOLDFAST_CKPT_PLAN_PADDING_H_
#define HOLDFAST_CKPT_PLAN_PADDING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

class Padding {
 public:
  // `manifest` outlives this; `wanted` speaks of `items`.
  Padding(const Manifest* manifest, const std::vector<ItemSpec>& items,
          const Holding& wanted);

  // Bytes [begin, end) of a region: does a fragment end at `begin`, and `end`
  // is at most the next multiple of 4,096?
  bool InRegion(uint32_t region, uint64_t begin, uint64_t end) const;
  // Bytes [begin, end) of a file of the manifest: are they in no chunk?
  bool InFile(uint32_t file, uint64_t begin, uint64_t end) const;

 private:
  const Manifest* const manifest_;
  std::vector<std::pair<uint32_t, uint64_t>> ends_;  // region, offset; sorted
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_PADDING_H_
