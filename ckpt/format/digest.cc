// ckpt/format/digest.cc: runs of boxes cut into logical segments, which
// ckpt/format/digest_segments.h sums.

#include "ckpt/format/digest.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/format/digest_segments.h"
#include "ckpt/format/mix.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::ckpt {
namespace {

// The number of the row, in the item, that row `row` of `part` is a piece of.
// A row is the last dimension.
uint64_t LogicalRow(const std::vector<int64_t>& shape, const Box& part,
                    int64_t row) {
  uint64_t logical = 0;
  uint64_t scale = 1;
  for (int d = part.dimensions - 2; d >= 0; --d) {
    logical += (part.first[d] + row % part.count[d]) * scale;
    row /= part.count[d];
    scale *= shape[d];
  }
  return logical;
}

Digest128 DigestWords(const ItemSpec& item, const Digest128& key,
                      const Box& part, int64_t first, int64_t count,
                      const std::byte* data) {
  static const SegmentSums sums = ListSegmentSums().front();
  const int size = SizeOf(item.dtype);
  const int last = part.dimensions - 1;
  const int64_t width = last < 0 ? 1 : part.count[last];
  const int64_t width_logical = last < 0 ? 1 : item.shape[last];
  const int64_t column_first = last < 0 ? 0 : part.first[last];
  const uint64_t segments_in_row =
      (width_logical + kSegmentElements - 1) / kSegmentElements;

  Digest128 sum;
  int64_t row = first / width;
  int64_t column = first % width;
  for (; count > 0; ++row, column = 0) {
    const uint64_t row_segment =
        LogicalRow(item.shape, part, row) * segments_in_row;
    int64_t at = column_first + column;  // in the logical row
    const int64_t end = at + std::min(width - column, count);
    count -= end - at;
    while (at < end) {
      const int64_t inside = at % kSegmentElements;
      const uint64_t index = row_segment + at / kSegmentElements;
      int64_t taken = std::min(kSegmentElements - inside, end - at);
      if (taken == kSegmentElements) {
        const int64_t segments = (end - at) / kSegmentElements;
        sums.add(size, data, segments, key, index, &sum);
        taken = segments * kSegmentElements;
      } else {
        AddPartOfSegment(size, data, inside, taken, key, index, &sum);
      }
      data += taken * size;
      at += taken;
    }
  }
  return sum;
}

}  // namespace

std::string ToHex(const Digest128& digest) {
  return absl::StrFormat("%016x%016x", digest.high, digest.low);
}

absl::StatusOr<Digest128> ParseDigest(std::string_view hex) {
  Digest128 digest;
  const auto parse = [](std::string_view half, uint64_t* value) {
    const auto [end, error] =
        std::from_chars(half.data(), half.data() + half.size(), *value, 16);
    return error == std::errc{} && end == half.data() + half.size();
  };
  if (hex.size() != 32 || !parse(hex.substr(0, 16), &digest.high) ||
      !parse(hex.substr(16), &digest.low)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' is not a digest: 32 hexadecimal digits expected", hex));
  }
  return digest;
}

Digest128 DigestBytes(std::string_view bytes) {
  // Eight bytes at a time, the last word filled up with zeros; the length tells
  // the fill from zeros that belong.
  Digest128 state{Mix64(bytes.size() + kGolden64),
                  Mix64(bytes.size() + 2 * kGolden64)};
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at,
                std::min<size_t>(8, bytes.size() - at));
    state.low = Mix64((state.low ^ word) + kGolden64);
    state.high = Mix64((state.high ^ word) + 2 * kGolden64);
  }
  return state;
}

Digest128 DigestRun(const ItemSpec& item, const Box& part, int64_t first,
                    int64_t count, std::span<const std::byte> bytes) {
  const int size = SizeOf(item.dtype);
  HF_CHECK(part.dimensions == static_cast<int>(item.shape.size()) &&
               first >= 0 && count >= 0 && first <= part.elements() - count &&
               bytes.size() == static_cast<uint64_t>(count) * size,
           "'%s' %s: elements %d to %d of %s in %d bytes", item.name, item.kind,
           first, first + count, ToString(part), bytes.size());
  // No name holds a zero byte (ckpt/format/manifest.cc), so the two cannot run
  // into each other.
  std::string id = item.name;
  id += '\0';
  id += item.kind;
  return DigestWords(item, DigestBytes(id), part, first, count, bytes.data());
}

}  // namespace holdfast::ckpt
