// tools/convert/dcp/dcp_cover.cc: a sweep along the first dimension.

#include "tools/convert/dcp/dcp_cover.h"

#include <map>
#include <span>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace holdfast::tools {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 56;
constexpr int64_t kComparisonsMax = int64_t{1} << 26;

// The product of lengths, or -1 for a negative one or too many.
int64_t Product(std::span<const int64_t> lengths) {
  int64_t product = 1;
  for (const int64_t length : lengths) {
    if (length < 0 || length > kElementsMax) return -1;
    if (length != 0 && product > kElementsMax / length) return -1;
    product *= length;
  }
  return product;
}

bool Overlap(const DcpChunk& a, const DcpChunk& b) {
  for (size_t i = 0; i < a.first.size(); ++i) {
    if (a.first[i] >= b.first[i] + b.count[i]) return false;
    if (b.first[i] >= a.first[i] + a.count[i]) return false;
  }
  return true;
}

}  // namespace

absl::Status CheckCover(const DcpTensor& tensor) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrFormat(".metadata, '%s' [%s]: %s", tensor.name,
                        absl::StrJoin(tensor.shape, ","), what));
  };
  const int64_t elements = Product(tensor.shape);
  if (elements < 0) return bad("its shape is impossible");
  int64_t held = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    bool inside = chunk.first.size() == tensor.shape.size() &&
                  chunk.count.size() == tensor.shape.size();
    for (size_t i = 0; inside && i < tensor.shape.size(); ++i) {
      inside = chunk.first[i] >= 0 && chunk.count[i] >= 0 &&
               chunk.count[i] <= tensor.shape[i] &&
               chunk.first[i] <= tensor.shape[i] - chunk.count[i];
    }
    if (!inside) {
      return bad(absl::StrFormat("a chunk [%s] of [%s] is not inside it",
                                 absl::StrJoin(chunk.first, ","),
                                 absl::StrJoin(chunk.count, ",")));
    }
    held += Product(chunk.count);
    if (held > elements) {
      return bad(absl::StrFormat("its chunks have more than its %d elements",
                                 elements));
    }
  }
  if (held != elements) {
    return bad(absl::StrFormat("its chunks have %d of its %d elements", held,
                               elements));
  }
  if (tensor.shape.empty()) return absl::OkStatus();
  // As many elements as there should be: they are the right ones when no two
  // chunks overlap. `open` has those that reach the sweep's row, by their end
  // in the first dimension.
  int64_t comparisons = 0;
  std::multimap<int64_t, const DcpChunk*> open;
  for (const DcpChunk& chunk : tensor.chunks) {
    if (Product(chunk.count) == 0) continue;
    open.erase(open.begin(), open.upper_bound(chunk.first[0]));
    comparisons += static_cast<int64_t>(open.size());
    if (comparisons > kComparisonsMax) return bad("too many chunks");
    for (const auto& [end, other] : open) {
      if (Overlap(chunk, *other)) {
        return bad(absl::StrFormat("the chunks at [%s] and [%s] overlap",
                                   absl::StrJoin(other->first, ","),
                                   absl::StrJoin(chunk.first, ",")));
      }
    }
    open.emplace(chunk.first[0] + chunk.count[0], &chunk);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::tools
