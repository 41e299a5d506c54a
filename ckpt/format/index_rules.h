// ckpt/format/index_rules.h: what the two kinds of index of a shard file have
// in common. Private to ckpt/format.

#ifndef HOLDFAST_CKPT_FORMAT_INDEX_RULES_H_
#define HOLDFAST_CKPT_FORMAT_INDEX_RULES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/format/shard.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {

inline uint64_t IndexBytes(uint64_t unit_count, size_t entry_bytes) {
  return RoundUp(unit_count * entry_bytes, kShardBlockBytes);
}

inline absl::Status CheckIndexSize(std::span<const std::byte> bytes,
                                   uint32_t unit_count, size_t entry_bytes) {
  const uint64_t expected = IndexBytes(unit_count, entry_bytes);
  if (bytes.size() == expected) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("the index of %d units has %d bytes, %d expected",
                      unit_count, bytes.size(), expected));
}

inline absl::Status CheckZerosAfter(const Reader& in,
                                    std::span<const std::byte> bytes,
                                    uint32_t unit_count) {
  const std::span<const std::byte> rest = bytes.subspan(in.position());
  if (std::all_of(rest.begin(), rest.end(),
                  [](std::byte b) { return b == std::byte{0}; })) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat(
      "the index has bytes that are not zero after its %d units", unit_count));
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_INDEX_RULES_H_
