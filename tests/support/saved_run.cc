// tests/support/saved_run.cc: see saved_run.h.

#include "tests/support/saved_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/shard.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/storage/blocking.h"

namespace holdfast::tests {

using namespace holdfast::ckpt;  // NOLINT: this file speaks of nothing else

namespace {

std::vector<TensorSpec> SmallTensors() {
  std::vector<TensorSpec> tensors;
  tensors.push_back({.name = "model.embed_tokens.weight",
                     .shape = {90, 64},
                     .tp_dimension = 0,
                     .tp_pad_multiple = 16});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrFormat("model.layers.%d.", layer);
    tensors.push_back({.name = prefix + "input_layernorm.weight",
                       .shape = {64},
                       .layer = layer});
    tensors.push_back({.name = prefix + "mlp.down_proj.weight",
                       .shape = {64, 128},
                       .tp_dimension = 1,
                       .layer = layer});
    tensors.push_back({.name = prefix + "self_attn.q_proj.weight",
                       .shape = {64, 64},
                       .tp_dimension = 0,
                       .layer = layer});
  }
  tensors.push_back(
      {.name = "model.norm.weight", .shape = {64}, .layer = kOnLastStage});
  tensors.push_back({.name = "lm_head.weight",
                     .shape = {90, 64},
                     .tp_dimension = 0,
                     .tp_pad_multiple = 16,
                     .layer = kOnLastStage});
  return tensors;
}

// Calls visit(place in the item, byte offset in the region) for each element.
template <typename Visit>
void ForEachElement(const ItemSpec& item, const Fragment& fragment,
                    Visit visit) {
  const Box& part = fragment.part;
  uint64_t offset = fragment.offset;
  for (int64_t e = fragment.first; e < fragment.first + fragment.count; ++e) {
    int64_t rest = e;
    int64_t place = 0;
    int64_t scale = 1;
    for (int d = part.dimensions - 1; d >= 0; --d) {
      place += (part.first[d] + rest % part.count[d]) * scale;
      rest /= part.count[d];
      scale *= item.shape[d];
    }
    visit(place, offset);
    offset += SizeOf(item.dtype);
  }
}

// No byte of it is zero, so that bytes that were not written show; of eight
// values each, so that a codec has something to do.
uint64_t ValueOf(uint64_t seed, uint64_t item_key, int64_t place) {
  return (Philox64(seed, item_key, place) & 0x0e0e0e0e0e0e0e0e) |
         0x0101010101010101;
}

uint64_t KeyOf(const ItemSpec& item) {
  return Hash64(item.kind, Hash64(item.name));
}

}  // namespace

std::unique_ptr<TrainLayout> SmallLayout(int tp, int pp, int dp) {
  TrainLayoutOptions options;
  options.mesh.tp = tp;
  options.mesh.pp = pp;
  options.mesh.dp = dp;
  auto stages = EvenStages(2, pp, 0, 0);
  HF_CHECK(stages.ok(), "%s", stages.status().ToString());
  options.stages = *stages;
  auto layout = TrainLayout::Create(SmallTensors(), options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

JobMemory::JobMemory(const Holding& holding) {
  for (const uint64_t bytes : holding.region_bytes) {
    regions_.emplace_back(RoundUp(bytes, AlignedBuffer::kAlignment));
  }
}

JobMemory::JobMemory(const JobLayout& layout, const Holding& holding,
                     uint64_t seed)
    : JobMemory(holding) {
  for (const Fragment& fragment : holding.fragments) {
    const ItemSpec& item = layout.items()[fragment.item];
    const uint64_t key = KeyOf(item);
    std::byte* const region = regions_[fragment.region].data();
    ForEachElement(item, fragment, [&](int64_t place, uint64_t offset) {
      const uint64_t value = ValueOf(seed, key, place);
      std::memcpy(region + offset, &value, SizeOf(item.dtype));
    });
  }
}

std::vector<std::span<std::byte>> JobMemory::spans() {
  std::vector<std::span<std::byte>> spans;
  for (AlignedBuffer& region : regions_) spans.push_back(region.span());
  return spans;
}

std::string JobMemory::Differs(const JobLayout& layout, const Holding& holding,
                               uint64_t seed) const {
  const JobMemory expected(layout, holding, seed);
  for (size_t r = 0; r < regions_.size(); ++r) {
    const auto found = regions_[r].span();
    const auto wanted = expected.regions_[r].span();
    const auto [a, b] =
        std::mismatch(found.begin(), found.end(), wanted.begin());
    if (a == found.end()) continue;
    return absl::StrFormat("byte %d of region %d is %02x, expected %02x",
                           a - found.begin(), r, static_cast<uint8_t>(*a),
                           static_cast<uint8_t>(*b));
  }
  return "";
}

absl::StatusOr<Manifest> WriteShards(Storage& storage, const JobLayout& layout,
                                     const CheckpointSpec& spec,
                                     const std::string& dir) {
  Blocking disk(storage);
  HF_RETURN_IF_ERROR(disk.MakeDir(dir));
  Manifest manifest;
  manifest.run_id = spec.run_id;
  manifest.id = spec.id;
  manifest.commit_number = spec.commit_number;
  manifest.parent = spec.parent;
  manifest.time_unix_ms = 1'700'000'000'000 + spec.id.step;
  manifest.world = layout.world();
  manifest.layout = layout.description();
  manifest.plan_hash = 1;
  manifest.items = layout.items();
  manifest.item_digests.resize(manifest.items.size());
  manifest.attributes = spec.attributes;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Holding stored = layout.StoredBy(Rank{rank});
    JobMemory memory(layout, stored, spec.seed);
    const auto regions = memory.spans();
    const SavePlan plan = PlanSave(layout.items(), stored);
    const ShardIdentity identity{spec.run_id, spec.id,
                                 static_cast<uint32_t>(rank),
                                 static_cast<uint32_t>(layout.world())};
    AlignedBuffer file(plan.file_bytes);
    const auto put = [&file](uint64_t at, std::span<const std::byte> bytes) {
      std::copy(bytes.begin(), bytes.end(), file.data() + at);
    };
    put(0, EncodeShardHeader(identity));
    std::vector<Unit> units;
    std::vector<std::pair<uint64_t, CodedUnit>> coded;  // by place in the image
    uint64_t data_end = plan.index_offset;
    if (spec.zstd_level >= 0) data_end = kShardBlockBytes;
    for (const WriteUnit& unit : plan.units) {
      const auto bytes =
          regions[unit.region].subspan(unit.region_offset, unit.bytes);
      if (spec.zstd_level < 0) {
        put(unit.file_offset, bytes);
        units.push_back({unit.file_offset, unit.bytes, Crc32c(bytes)});
        continue;
      }
      std::vector<std::byte> out(unit.bytes);
      ZstdEncoder encoder(spec.zstd_level, unit.bytes);
      CodedUnit stored = CodeUnit(encoder, bytes, 4, out);
      stored.offset = data_end;
      put(data_end, std::span(out).first(stored.padded_bytes()));
      data_end += stored.padded_bytes();
      coded.emplace_back(unit.file_offset, stored);
    }
    for (const DigestPiece& piece : plan.pieces) {
      const ItemSpec& item = layout.items()[piece.item];
      const WriteUnit& unit = plan.units[piece.unit];
      manifest.item_digests[piece.item] += DigestRun(
          item, piece.part, piece.first, piece.count,
          regions[unit.region].subspan(unit.region_offset + piece.unit_offset,
                                       piece.count * SizeOf(item.dtype)));
    }
    std::vector<std::byte> index = EncodeShardIndex(units);
    ShardFile shard;
    shard.unit_count = plan.units.size();
    if (!coded.empty()) {
      std::sort(coded.begin(), coded.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<CodedUnit> by_place;
      for (const auto& [place, unit] : coded) by_place.push_back(unit);
      index = EncodeCodedIndex(by_place);
      shard.plain_bytes = plan.index_offset - kShardBlockBytes;
      manifest.features_must = {kZstdName};
    }
    shard.bytes = data_end + index.size() + kShardBlockBytes;
    HF_CHECK(shard.bytes <= file.size(), "%d bytes in %d", shard.bytes,
             file.size());
    put(data_end, index);
    put(data_end + index.size(),
        EncodeShardFooter(identity, data_end, shard.unit_count, Crc32c(index),
                          shard.plain_bytes));

    shard.name = absl::StrFormat("shard-%05d.hf", rank);
    shard.crc_index = Crc32c(index);
    shard.chunks = plan.chunks;
    const std::string path = dir + "/" + shard.name;
    constexpr FileId kFile{1};
    HF_RETURN_IF_ERROR(disk.Create(path, kFile, shard.bytes));
    HF_RETURN_IF_ERROR(disk.Write(kFile, 0, file.span().first(shard.bytes)));
    HF_RETURN_IF_ERROR(disk.Sync(kFile));
    HF_RETURN_IF_ERROR(disk.Close(kFile));
    manifest.files.push_back(std::move(shard));
  }
  HF_RETURN_IF_ERROR(disk.SyncDir(dir));
  const size_t slash = dir.rfind('/');
  HF_RETURN_IF_ERROR(
      disk.SyncDir(slash == std::string::npos ? "." : dir.substr(0, slash)));
  return manifest;
}

absl::Status WriteManifest(Storage& storage, const std::string& dir,
                           const Manifest& manifest) {
  return Blocking(storage).PutIfAbsent(dir + "/" + kManifestName,
                                       EncodeManifest(manifest));
}

absl::Status WriteCheckpoint(Storage& storage, const JobLayout& layout,
                             const CheckpointSpec& spec,
                             const std::string& dir) {
  HF_ASSIGN_OR_RETURN(const Manifest manifest,
                      WriteShards(storage, layout, spec, dir));
  return WriteManifest(storage, dir, manifest);
}

absl::Status MakeRun(Storage& storage) {
  Blocking disk(storage);
  HF_RETURN_IF_ERROR(disk.PutIfAbsent(kRunIdName, EncodeRunId(kTestRun)));
  HF_RETURN_IF_ERROR(disk.MakeDir(kOwnersDir));
  HF_RETURN_IF_ERROR(disk.MakeDir(kCheckpointsDir));
  HF_RETURN_IF_ERROR(disk.SyncDir("."));
  return disk.PutIfAbsent(kCheckpointsRunIdName, EncodeRunId(kTestRun));
}

absl::Status Claim(Storage& storage, uint32_t incarnation) {
  OwnerClaim claim;
  claim.run_id = kTestRun;
  claim.incarnation = incarnation;
  claim.host = "somewhere";
  claim.pid = 1000 + incarnation;
  claim.world = 1;
  return Blocking(storage).PutIfAbsent(ClaimName(incarnation),
                                       EncodeClaim(claim));
}

absl::Status Seal(Storage& storage, OwnerSeal seal) {
  seal.run_id = kTestRun;
  return Blocking(storage).PutIfAbsent(SealName(seal.incarnation),
                                       EncodeSeal(seal));
}

}  // namespace holdfast::tests
