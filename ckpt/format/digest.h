// ckpt/format/digest.h: a hash of logical content that ranks compute in parts.
//
// The digest of an item is a sum mod 2^64, in two lanes, over its elements:
//
//   sum over segments s of K(item, s) * sum over j of P[j] * F(bits(s, j))
//
// A segment is kSegmentElements consecutive elements of one logical row (the
// last dimension); K is an odd 64-bit number drawn from the item's name, kind
// and the segment's coordinates, P a fixed table of odd 32-bit numbers, and F
// folds the upper half of an element's bits onto the lower. It is a sum over
// elements, so any cut of the tensor into boxes, in mid-segment too, gives
// parts whose sum is the same, in any order. One changed element always changes
// it. It finds accidents; it does not stop an attacker. Every constant:
// ckpt/FORMAT.md.

#ifndef HOLDFAST_CKPT_FORMAT_DIGEST_H_
#define HOLDFAST_CKPT_FORMAT_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckpt/layout/box.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

inline constexpr int64_t kSegmentElements = 64;

struct Digest128 {
  uint64_t low = 0;
  uint64_t high = 0;

  Digest128& operator+=(const Digest128& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

std::string ToHex(const Digest128& digest);  // 32 digits
absl::StatusOr<Digest128> ParseDigest(std::string_view hex);

// The part of `item`'s digest that comes from elements [first, first + count)
// of the row-major order of `part`; `bytes` holds exactly those elements.
// Little-endian. Reads each byte once, at memory speed.
Digest128 DigestRun(const ItemSpec& item, const Box& part, int64_t first,
                    int64_t count, std::span<const std::byte> bytes);

// A digest of arbitrary bytes, for names and attributes.
Digest128 DigestBytes(std::string_view bytes);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_DIGEST_H_
