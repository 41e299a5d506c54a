// ckpt/format/digest_segments.cc: 64 elements times two tables of odd numbers,
// summed. The loop is plain; the compiler turns it into vector code once for
// each instruction set.

#include "ckpt/format/digest_segments.h"

#include <array>
#include <bit>

#include "ckpt/base/check.h"
#include "ckpt/format/mix.h"

namespace holdfast::ckpt {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are digested as little-endian words");

struct alignas(64) Table {
  std::array<uint32_t, kSegmentElements> low{};
  std::array<uint32_t, kSegmentElements> high{};
};

constexpr Table MakeTable() {
  Table table;
  for (uint64_t j = 0; j < kSegmentElements; ++j) {
    table.low[j] = static_cast<uint32_t>(Mix64(j + 1) >> 32) | 1;
    table.high[j] =
        static_cast<uint32_t>(Mix64(j + 1 + kSegmentElements) >> 32) | 1;
  }
  return table;
}

constexpr Table kTable = MakeTable();

// K of segment `index` in the lane whose key is `key`.
inline uint64_t SegmentKey(uint64_t key, uint64_t index) {
  return Mix64(key + (index + 1) * kGolden64) | 1;
}

// Elements as words that may lie at any address.
template <typename Word>
struct Element {
  typedef Word Type __attribute__((aligned(1), may_alias));
};

template <typename Word>
[[gnu::always_inline]] inline const auto* AsWords(const std::byte* data) {
  return reinterpret_cast<const typename Element<Word>::Type*>(data);
}

// Without it a flipped sign of an 8-byte element would add exactly 2^63, and
// two of them nothing; and elements whose low bits are zero would leave the low
// bits of the sum zero. One to one, so that no two elements become alike.
template <typename Word>
[[gnu::always_inline]] inline uint64_t Fold(Word x) {
  if constexpr (sizeof(Word) >= 4) {
    return static_cast<Word>(x ^ (x >> (4 * sizeof(Word))));
  } else {
    return x;
  }
}

template <typename Word>
void AddPart(const std::byte* data, int64_t first, int64_t count,
             const Digest128& key, uint64_t index, Digest128* sum) {
  const auto* const x = AsWords<Word>(data);
  uint64_t low = 0, high = 0;
  for (int64_t j = 0; j < count; ++j) {
    low += uint64_t{kTable.low[first + j]} * Fold<Word>(x[j]);
    high += uint64_t{kTable.high[first + j]} * Fold<Word>(x[j]);
  }
  sum->low += SegmentKey(key.low, index) * low;
  sum->high += SegmentKey(key.high, index) * high;
}

template <typename Word>
[[gnu::always_inline]] inline void AddWhole(const std::byte* data,
                                            int64_t segments,
                                            const Digest128& key,
                                            uint64_t index, Digest128* sum) {
  uint64_t sum_low = 0, sum_high = 0;
  for (int64_t s = 0; s < segments; ++s) {
    const auto* const x =
        AsWords<Word>(data + s * kSegmentElements * sizeof(Word));
    uint64_t low = 0, high = 0;
    for (int64_t j = 0; j < kSegmentElements; ++j) {
      low += uint64_t{kTable.low[j]} * Fold<Word>(x[j]);
      high += uint64_t{kTable.high[j]} * Fold<Word>(x[j]);
    }
    sum_low += SegmentKey(key.low, index + s) * low;
    sum_high += SegmentKey(key.high, index + s) * high;
  }
  sum->low += sum_low;
  sum->high += sum_high;
}

[[gnu::always_inline]] inline void AddBySize(int size, const std::byte* data,
                                             int64_t segments,
                                             const Digest128& key,
                                             uint64_t index, Digest128* sum) {
  switch (size) {
    case 1:
      return AddWhole<uint8_t>(data, segments, key, index, sum);
    case 2:
      return AddWhole<uint16_t>(data, segments, key, index, sum);
    case 4:
      return AddWhole<uint32_t>(data, segments, key, index, sum);
    default:
      return AddWhole<uint64_t>(data, segments, key, index, sum);
  }
}

void AddPlain(int size, const std::byte* data, int64_t segments,
              const Digest128& key, uint64_t index, Digest128* sum) {
  AddBySize(size, data, segments, key, index, sum);
}

#if defined(__x86_64__)
// GCC would otherwise stay with 256 bits; Clang does not know the word.
#if defined(__clang__)
#define HOLDFAST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define HOLDFAST_AVX512 \
  "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif

[[gnu::target("avx2")]] void AddAvx2(int size, const std::byte* data,
                                     int64_t segments, const Digest128& key,
                                     uint64_t index, Digest128* sum) {
  AddBySize(size, data, segments, key, index, sum);
}

[[gnu::target(HOLDFAST_AVX512)]] void AddAvx512(int size, const std::byte* data,
                                                int64_t segments,
                                                const Digest128& key,
                                                uint64_t index,
                                                Digest128* sum) {
  AddBySize(size, data, segments, key, index, sum);
}
#endif

}  // namespace

void AddPartOfSegment(int size, const std::byte* data, int64_t first,
                      int64_t count, const Digest128& key, uint64_t index,
                      Digest128* sum) {
  HF_CHECK(first >= 0 && count >= 0 && first + count <= kSegmentElements,
           "elements %d to %d of a segment", first, first + count);
  switch (size) {
    case 1:
      return AddPart<uint8_t>(data, first, count, key, index, sum);
    case 2:
      return AddPart<uint16_t>(data, first, count, key, index, sum);
    case 4:
      return AddPart<uint32_t>(data, first, count, key, index, sum);
    default:
      return AddPart<uint64_t>(data, first, count, key, index, sum);
  }
}

std::vector<SegmentSums> ListSegmentSums() {
  std::vector<SegmentSums> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    list.push_back({"avx512", AddAvx512});
  }
  if (__builtin_cpu_supports("avx2")) list.push_back({"avx2", AddAvx2});
#endif
  list.push_back({"plain", AddPlain});
  return list;
}

}  // namespace holdfast::ckpt
