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
#include "ckpt/format/coded_units.h"
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

// The coded example of ckpt/FORMAT.md: one rank, 2,000 ones and the bias.
//
//   ones  (weight, f32 [2000])   8,000 bytes; its unit was written second
inline std::vector<std::byte> SampleOnesUnit() {
  std::vector<std::byte> unit = BytesOf(std::vector<float>(2000, 1.0f));
  unit.resize(2 * kShardBlockBytes);
  return unit;
}

// The frame is the document's: another version of zstd may well write others.
inline std::vector<std::byte> CodedFrame() {
  constexpr uint8_t kBytes[] = {0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x1f, 0xb5,
                                0x00, 0x00, 0x30, 0x00, 0x00, 0x80, 0x00, 0x3f,
                                0x00, 0x05, 0x10, 0x00, 0x44, 0xc2, 0xfc, 0x7f,
                                0x44, 0x8c, 0xf9, 0x5f, 0xec, 0xdf, 0xc7, 0x02};
  return BytesOf(std::vector<uint8_t>(std::begin(kBytes), std::end(kBytes)));
}

inline std::vector<std::byte> CodedIndex() {
  std::vector<std::byte> frame = CodedFrame();
  const uint32_t bytes = frame.size();
  frame.resize(kShardBlockBytes);
  return EncodeCodedIndex(
      std::vector<CodedUnit>{{.offset = 8192,
                              .bytes_stored = bytes,
                              .bytes = 8192,
                              .crc = Crc32c(frame),
                              .codec = Codec::kZstd,
                              .planes = 4},
                             {.offset = 4096,
                              .bytes_stored = 4096,
                              .bytes = 4096,
                              .crc = Crc32c(SampleUnits(0)[1])}});
}

inline ShardIdentity CodedIdentity() {
  ShardIdentity identity = SampleIdentity(0);
  identity.file_count = 1;
  return identity;
}

inline std::vector<std::byte> CodedFooter() {
  return EncodeShardFooter(CodedIdentity(), 12288, 2, Crc32c(CodedIndex()),
                           12288);
}

inline Manifest CodedManifest() {
  Manifest m = SampleManifest();
  m.features_must = {kZstdName};
  m.world = 1;
  m.layout = "tp1-pp1-dp1";
  m.items[1] = {"ones", "weight", DType::kF32, {2000}};
  const Box ones = WholeBox(m.items[1].shape);
  m.item_digests[1] = DigestRun(m.items[1], ones, 0, 2000,
                                BytesOf(std::vector<float>(2000, 1.0f)));
  m.files = {{.name = "shard-00000.hf",
              .bytes = 20480,
              .unit_count = 2,
              .crc_index = Crc32c(CodedIndex()),
              .chunks = {{.item = 1,
                          .part = ones,
                          .first = 0,
                          .count = 2000,
                          .offset = 4096,
                          .bytes_stored = 8000},
                         {.item = 0,
                          .part = WholeBox(m.items[0].shape),
                          .first = 0,
                          .count = 3,
                          .offset = 12288,
                          .bytes_stored = 12}},
              .plain_bytes = 12288}};
  return m;
}

// Makes the last four bytes the CRC32C of those before.
inline void PutCrc(std::vector<std::byte>* bytes) {
  const uint32_t crc = Crc32c(std::span(*bytes).first(bytes->size() - 4));
  std::memcpy(bytes->data() + bytes->size() - 4, &crc, 4);
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_
