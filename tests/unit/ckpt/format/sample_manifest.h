// tests/unit/ckpt/format/sample_manifest.h: the worked example of
// ckpt/FORMAT.md: two items on two ranks, small enough to be checked by eye.
//
//   w     (weight, bf16 [4, 6])   elements 0-13 in file 0, 14-23 in file 1;
//                                 element i has the bits 0x3f80 + i
//   bias  (master, f32 [3])       in file 0; 1.0, 2.0, 3.0

#ifndef HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_
#define HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_

#include <cstring>
#include <span>
#include <vector>

#include "ckpt/format/checksum.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"

namespace holdfast::ckpt {

inline RunId SampleRunId() {
  RunId id;
  for (size_t i = 0; i < id.size(); ++i) id[i] = 0xa0 + i;
  return id;
}

inline CheckpointId SampleId() {
  return {.step = 120, .incarnation = 3, .attempt = 1};
}

inline ShardIdentity SampleIdentity(uint32_t file) {
  return {
      .run_id = SampleRunId(), .id = SampleId(), .file = file, .file_count = 2};
}

template <typename Element>
std::vector<std::byte> BytesOf(const std::vector<Element>& elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

inline std::vector<std::byte> SampleBias() {
  return BytesOf(std::vector<float>{1, 2, 3});
}

// Elements [first, first + count) of w.
inline std::vector<std::byte> SampleW(int first, int count) {
  std::vector<uint16_t> elements;
  for (int i = first; i < first + count; ++i) elements.push_back(0x3f80 + i);
  return BytesOf(elements);
}

// The units of a file: one block for each of its chunks.
inline std::vector<std::vector<std::byte>> SampleUnits(int file) {
  std::vector<std::vector<std::byte>> units;
  if (file == 0) {
    units = {SampleW(0, 14), SampleBias()};
  } else {
    units = {SampleW(14, 10)};
  }
  for (auto& unit : units) unit.resize(kShardBlockBytes);
  return units;
}

inline std::vector<std::byte> SampleIndex(int file) {
  std::vector<Unit> units;
  for (const auto& unit : SampleUnits(file)) {
    units.push_back({.offset = kShardBlockBytes * (1 + units.size()),
                     .bytes = kShardBlockBytes,
                     .crc = Crc32c(unit)});
  }
  return EncodeShardIndex(units);
}

inline std::vector<std::byte> SampleFooter(int file) {
  const uint32_t units = SampleUnits(file).size();
  return EncodeShardFooter(SampleIdentity(file), kShardBlockBytes * (1 + units),
                           units, Crc32c(SampleIndex(file)));
}

inline Manifest SampleManifest() {
  Manifest m;
  m.run_id = SampleRunId();
  m.id = SampleId();
  m.commit_number = 2;
  m.parent = CheckpointId{.step = 60, .incarnation = 3, .attempt = 1};
  m.time_unix_ms = 1767225600000;  // 2026-01-01 00:00:00 UTC
  m.world = 2;
  m.layout = "tp1-pp1-dp2";
  m.plan_hash = 0x1122334455667788;
  m.items = {{"bias", "master", DType::kF32, {3}},
             {"w", "weight", DType::kBf16, {4, 6}}};
  const Box bias = WholeBox(m.items[0].shape);
  const Box w = WholeBox(m.items[1].shape);
  m.item_digests = {DigestRun(m.items[0], bias, 0, 3, SampleBias()),
                    DigestRun(m.items[1], w, 0, 24, SampleW(0, 24))};
  m.files = {{.name = "shard-00000.hf",
              .bytes = 20480,
              .unit_count = 2,
              .crc_index = Crc32c(SampleIndex(0)),
              .chunks = {{.item = 1,
                          .part = w,
                          .first = 0,
                          .count = 14,
                          .offset = 4096,
                          .bytes_stored = 28},
                         {.item = 0,
                          .part = bias,
                          .first = 0,
                          .count = 3,
                          .offset = 8192,
                          .bytes_stored = 12}}},
             {.name = "shard-00001.hf",
              .bytes = 16384,
              .unit_count = 1,
              .crc_index = Crc32c(SampleIndex(1)),
              .chunks = {{.item = 1,
                          .part = w,
                          .first = 14,
                          .count = 10,
                          .offset = 4096,
                          .bytes_stored = 20}}}};
  m.attributes = {{".host", "n042"}, {"step", "120"}};
  return m;
}

// Makes the last four bytes the CRC32C of those before.
inline void PutCrc(std::vector<std::byte>* bytes) {
  const uint32_t crc = Crc32c(std::span(*bytes).first(bytes->size() - 4));
  std::memcpy(bytes->data() + bytes->size() - 4, &crc, 4);
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_
