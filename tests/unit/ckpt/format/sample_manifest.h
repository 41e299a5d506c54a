// tests/unit/ckpt/format/sample_manifest.h: the worked example of
// ckpt/FORMAT.md: two items on two ranks, small enough to be checked by eye.
//
//   w     (weight, bf16 [4, 6])   elements 0-13 in file 0, 14-23 in file 1
//   bias  (master, f32 [3])       in file 0

#ifndef HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_
#define HOLDFAST_TESTS_UNIT_CKPT_FORMAT_SAMPLE_MANIFEST_H_

#include <cstring>
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
  m.item_digests = {{1, 2}, {3, 4}};
  const Box bias = WholeBox(m.items[0].shape);
  const Box w = WholeBox(m.items[1].shape);
  m.files = {{.name = "shard-00000.hf",
              .bytes = 20480,
              .unit_count = 2,
              .crc_index = 0xcafe0001,
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
              .crc_index = 0xcafe0002,
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
