// tests/fuzz/format_properties.h: what must hold for any bytes at all that are
// offered as a manifest, or as a block or index of a shard file. Decoding
// refuses them with a status, or accepts them, and what it accepts encodes back
// to exactly the same bytes: one meaning, one spelling. It never crashes and
// never reads outside of them. Frames have many spellings; of them only the
// rest is asked.
//
// Called by the fuzz targets beside this file and, with their corpora and with
// mutations of them, by an ordinary test. Each aborts when the property is
// broken, and returns how many decoders accepted something.

#ifndef HOLDFAST_TESTS_FUZZ_FORMAT_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_FORMAT_PROPERTIES_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"

namespace holdfast::ckpt {

inline void MustBeSame(const char* what, std::span<const std::byte> bytes,
                       const std::vector<std::byte>& encoded) {
  if (std::equal(bytes.begin(), bytes.end(), encoded.begin(), encoded.end())) {
    return;
  }
  std::fprintf(stderr, "a %s of %zu bytes was accepted and encodes otherwise\n",
               what, bytes.size());
  std::abort();
}

// Makes the last four bytes the checksum of the rest: mutations would hardly
// ever get past it otherwise.
inline std::vector<std::byte> WithCrc(std::span<const std::byte> bytes) {
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  if (repaired.size() < 4) return repaired;
  const uint32_t crc = Crc32c(std::span(repaired).first(repaired.size() - 4));
  std::memcpy(repaired.data() + repaired.size() - 4, &crc, 4);
  return repaired;
}

inline int CheckManifestBytes(std::span<const std::byte> bytes) {
  const auto check = [](std::span<const std::byte> candidate) {
    const auto manifest = DecodeManifest(candidate);
    if (!manifest.ok()) return 0;
    MustBeSame("manifest", candidate, EncodeManifest(*manifest));
    return 1;
  };
  int accepted = check(bytes);
  // Once more with a frame that fits: the body's length and the checksum.
  std::vector<std::byte> framed(bytes.begin(), bytes.end());
  if (framed.size() >= 28) {
    const uint64_t body = framed.size() - 28;
    std::memcpy(framed.data() + 16, &body, sizeof(body));
  }
  accepted += check(WithCrc(framed));
  return accepted;
}

inline int CheckShardBytes(std::span<const std::byte> bytes) {
  int accepted = 0;
  const std::vector<std::byte> repaired = WithCrc(bytes);
  for (const std::span<const std::byte> block :
       {bytes, std::span<const std::byte>(repaired)}) {
    if (const auto header = DecodeShardHeader(block); header.ok()) {
      MustBeSame("header", block, EncodeShardHeader(*header));
      ++accepted;
    }
    if (const auto footer = DecodeShardFooter(block); footer.ok()) {
      MustBeSame("footer", block,
                 EncodeShardFooter(footer->identity, footer->index_offset,
                                   footer->unit_count, footer->crc_index,
                                   footer->plain_bytes));
      ++accepted;
    }
  }
  // As an index, of as many units as there are entries that are not zero.
  const auto entries = [bytes](size_t size) {
    uint32_t units = 0;
    while ((units + 1) * size <= bytes.size() &&
           std::any_of(bytes.begin() + units * size,
                       bytes.begin() + (units + 1) * size,
                       [](std::byte b) { return b != std::byte{0}; })) {
      ++units;
    }
    return units;
  };
  if (const auto index = DecodeShardIndex(bytes, entries(16)); index.ok()) {
    MustBeSame("index", bytes, EncodeShardIndex(*index));
    ++accepted;
  }
  if (const auto index = DecodeCodedIndex(bytes, entries(24)); index.ok()) {
    MustBeSame("coded index", bytes, EncodeCodedIndex(*index));
    ++accepted;
  }
  return accepted;
}

// Any bytes as the frame of a unit: the first two say how many blocks of plain
// bytes are expected, and in how many planes. What is accepted fills the unit,
// and is coded and decoded to the same again.
inline int CheckFrameBytes(std::span<const std::byte> bytes) {
  static auto* const decoder = new ZstdDecoder(kUnitBytesMax);
  static auto* const encoder = new ZstdEncoder(0, kUnitBytesMax);
  if (bytes.size() < 2) return 0;
  const size_t plain_bytes =
      (1 + std::to_integer<size_t>(bytes[0])) * kShardBlockBytes;
  const int planes = 1 << std::to_integer<int>(bytes[1]) % 4;
  std::vector<std::byte> plain(plain_bytes);
  const auto frame = bytes.subspan(2);
  if (!decoder->Decode(frame, planes, plain).ok()) return 0;
  std::vector<std::byte> again(plain_bytes), stored(plain_bytes);
  const CodedUnit unit = CodeUnit(*encoder, plain, planes, stored);
  if (unit.codec == Codec::kNone) return 1;
  const absl::Status decoded = decoder->Decode(
      std::span(stored).first(unit.bytes_stored), planes, again);
  if (!decoded.ok() || again != plain) std::abort();
  return 1;
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_FUZZ_FORMAT_PROPERTIES_H_
