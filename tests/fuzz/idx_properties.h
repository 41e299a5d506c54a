// tests/fuzz/idx_properties.h: what must hold for any bytes at all that are
// offered as PREFIX.idx: refused with a status, or accepted, and then the lists
// that they hold encode back to the same bytes, and say as many tokens as the
// decoder did. It never crashes, never reads outside of them, and takes no
// memory by what they say.
//
// Called by the fuzz target idx and, with its corpus and with mutations of it,
// by an ordinary test. Aborts when the property is broken.

#ifndef HOLDFAST_TESTS_FUZZ_IDX_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_IDX_PROPERTIES_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "trainer/data/indexed_format.h"
#include "trainer/data/little_endian.h"

namespace holdfast::trainer {

inline void IdxMust(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "an index was accepted, but %s\n", what);
  std::abort();
}

// What an accepted index must be.
inline void CheckAcceptedIdx(std::span<const std::byte> index,
                             uint64_t bin_bytes, const IndexSummary& summary) {
  constexpr size_t kHeader = 34;
  std::vector<int32_t> lengths(summary.sequences);
  std::vector<int64_t> documents(summary.documents + 1);
  const size_t lists = kHeader + 12 * lengths.size();
  IdxMust(index.size() >= lists + 8 * documents.size(), "its lists are cut");
  uint64_t tokens = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = LoadInt<int32_t>(index, kHeader + 4 * i);
    tokens += static_cast<uint64_t>(lengths[i]);
  }
  for (size_t i = 0; i < documents.size(); ++i) {
    documents[i] = LoadInt<int64_t>(index, lists + 8 * i);
    IdxMust(documents[i] >= 0 &&
                static_cast<uint64_t>(documents[i]) <= summary.sequences,
            "a document begins behind its end");
  }
  IdxMust(tokens == summary.tokens &&
              tokens * TokenBytes(summary.type) == bin_bytes,
          "its tokens are not the bytes of the .bin");
  const std::vector<std::byte> again =
      EncodeIndex(summary.type, lengths, documents);
  // Modes, a byte a sequence, may follow.
  IdxMust(index.size() == again.size() ||
              index.size() == again.size() + summary.sequences,
          "it has another length than its lists");
  IdxMust(std::equal(again.begin(), again.end(), index.begin()),
          "its lists encode otherwise");
}

// Returns how often something was accepted.
inline int CheckIdxBytes(std::span<const std::byte> bytes) {
  const auto check = [](std::span<const std::byte> index, uint64_t bin_bytes) {
    const auto summary = DecodeIndex(index, bin_bytes, "fuzz.idx");
    if (!summary.ok()) return 0;
    CheckAcceptedIdx(index, bin_bytes, *summary);
    return 1;
  };
  int accepted = check(bytes, 8);
  constexpr size_t kHeader = 34;
  if (bytes.size() < kHeader) return accepted;
  // Once more with pointers, and a .bin, that fit the lengths: mutations would
  // hardly ever get past them otherwise.
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  const auto sequences = LoadInt<uint64_t>(bytes, 18);
  const auto code = LoadInt<uint8_t>(bytes, 17);
  const bool integer = (code >= 1 && code <= 5) || code == 8;
  if (!integer || sequences > (bytes.size() - kHeader) / 12) return accepted;
  const uint64_t token_bytes = TokenBytes(static_cast<TokenType>(code));
  uint64_t pointer = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    std::memcpy(&repaired[kHeader + 4 * sequences + 8 * i], &pointer,
                sizeof pointer);
    const auto length = LoadInt<int32_t>(bytes, kHeader + 4 * i);
    pointer += static_cast<uint64_t>(int64_t{length}) * token_bytes;
  }
  return accepted + check(repaired, pointer);
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_FUZZ_IDX_PROPERTIES_H_
