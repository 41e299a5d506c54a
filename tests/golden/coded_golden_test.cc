// Coded checkpoints that were written once and are read by every later program
// and with every later zstd: tests/golden/format-v1-zstd-0 and -19, one for
// each way in which levels differ. They are never written again.
//
// Two ranks, an item of each width and one of noise, which is stored as it is.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/mix.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/plan/scatter.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

std::string Directory(int level) {
  return absl::StrFormat("%s/tests/golden/format-v1-zstd-%d/",
                         HOLDFAST_SOURCE_DIR, level);
}

const std::vector<ItemSpec>& Items() {
  static const auto* const items =
      new std::vector<ItemSpec>{{"bytes", "state", DType::kU8, {18000}},
                                {"moment", "exp_avg", DType::kF32, {4500}},
                                {"noise", "state", DType::kF32, {4500}},
                                {"scale", "state", DType::kF64, {2400}},
                                {"w", "weight", DType::kBf16, {90, 100}}};
  return *items;
}
constexpr ItemIndex kNoise = 2;

// Element `index` of item `item`.
uint64_t ValueOf(ItemIndex item, int64_t index) {
  const auto at = static_cast<uint64_t>(index);
  if (item == kNoise) return Mix64(at + 1);
  return 0x0101010101010101 * (1 + (at * at + item) % 7) + (at % 11 << 8);
}

Bytes ItemBytes(ItemIndex item) {
  const int size = SizeOf(Items()[item].dtype);
  Bytes bytes(WholeBox(Items()[item].shape).elements() * size);
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const uint64_t value = ValueOf(item, i);
    std::memcpy(bytes.data() + i * size, &value, size);
  }
  return bytes;
}

// Half of every item, each in a region of its own.
Holding StoredBy(int rank) {
  Holding holding;
  for (ItemIndex i = 0; i < Items().size(); ++i) {
    const Box whole = WholeBox(Items()[i].shape);
    const int64_t half = whole.elements() / 2;
    holding.fragments.push_back({.item = i,
                                 .part = whole,
                                 .first = rank * half,
                                 .count = half,
                                 .region = i});
    holding.region_bytes.push_back(
        RoundUp(half * SizeOf(Items()[i].dtype), kShardBlockBytes));
  }
  return holding;
}

Holding WantedWhole() {
  Holding holding;
  for (ItemIndex i = 0; i < Items().size(); ++i) {
    const Box whole = WholeBox(Items()[i].shape);
    holding.fragments.push_back(
        {.item = i, .part = whole, .count = whole.elements(), .region = i});
    holding.region_bytes.push_back(whole.elements() * SizeOf(Items()[i].dtype));
  }
  return holding;
}

class CodedGoldenTest : public testing::TestWithParam<int> {
 protected:
  Bytes ReadFile(const std::string& name) {
    std::ifstream in(Directory(GetParam()) + name, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
  }
};

TEST_P(CodedGoldenTest, EveryElementComesBack) {
  const auto manifest = DecodeManifest(ReadFile(kManifestName));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->features_must, std::vector<std::string>{kZstdName});
  EXPECT_EQ(manifest->items, Items());
  const Holding wanted = WantedWhole();
  const auto plan = PlanLoad(*manifest, Items(), wanted);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<Bytes> memory;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : wanted.region_bytes) memory.emplace_back(bytes);
  for (Bytes& region : memory) regions.push_back(region);

  const Scatter scatter(*plan);
  std::set<int> planes;
  for (uint32_t f = 0; f < 2; ++f) {
    const Bytes contents = ReadFile(manifest->files[f].name);
    const std::span<const std::byte> file = contents;
    ASSERT_EQ(file.size(), manifest->files[f].bytes);
    const auto footer = DecodeShardFooter(file.last(kShardBlockBytes));
    ASSERT_TRUE(footer.ok()) << footer.status();
    EXPECT_EQ(footer->plain_bytes, manifest->files[f].plain_bytes);
    const auto index =
        file.subspan(footer->index_offset, CodedIndexBytes(footer->unit_count));
    EXPECT_EQ(Crc32c(index), manifest->files[f].crc_index);
    const auto units = DecodeCodedIndex(index, footer->unit_count);
    ASSERT_TRUE(units.ok()) << units.status();
    ZstdDecoder decoder(kUnitBytesMax);
    uint64_t place = kShardBlockBytes;
    for (const CodedUnit& unit : *units) {
      EXPECT_EQ(Crc32c(file.subspan(unit.offset, unit.padded_bytes())),
                unit.crc);
      Bytes plain(unit.bytes);
      const auto stored = file.subspan(unit.offset, unit.bytes_stored);
      if (unit.codec == Codec::kNone) {
        std::copy(stored.begin(), stored.end(), plain.begin());
        planes.insert(0);
      } else {
        const absl::Status decoded = decoder.Decode(stored, unit.planes, plain);
        ASSERT_TRUE(decoded.ok()) << decoded;
        planes.insert(unit.planes);
      }
      scatter.ScatterBytes(f, place, plain, regions);
      place += unit.bytes;
    }
  }
  EXPECT_EQ(planes, (std::set<int>{0, 1, 2, 4, 8}));
  for (ItemIndex i = 0; i < Items().size(); ++i) {
    EXPECT_EQ(memory[i], ItemBytes(i)) << Items()[i].name;
    const Box whole = WholeBox(Items()[i].shape);
    EXPECT_EQ(manifest->item_digests[i],
              DigestRun(Items()[i], whole, 0, whole.elements(), ItemBytes(i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Level, CodedGoldenTest, testing::Values(0, 19));

// How they were made: run once with --gtest_also_run_disabled_tests, and
// committed. It refuses to write over a checkpoint.
TEST(CodedGoldenWriter, DISABLED_WritesThemOnce) {
  for (const int level : {0, 19}) {
    ASSERT_FALSE(std::filesystem::exists(Directory(level)));
    std::filesystem::create_directory(Directory(level));
    const auto write = [level](const std::string& name, const Bytes& bytes) {
      std::ofstream out(Directory(level) + name, std::ios::binary);
      out.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      ASSERT_TRUE(out.good());
    };
    Manifest manifest;
    manifest.features_must = {kZstdName};
    for (size_t i = 0; i < manifest.run_id.size(); ++i) manifest.run_id[i] = i;
    manifest.id = {.step = 77, .incarnation = 1, .attempt = 2};
    manifest.commit_number = 1;
    manifest.time_unix_ms = 1764486000000;
    manifest.world = 2;
    manifest.layout = "two halves";
    manifest.plan_hash = 0x0123456789abcdef;
    manifest.items = Items();
    for (ItemIndex i = 0; i < Items().size(); ++i) {
      const Box whole = WholeBox(Items()[i].shape);
      manifest.item_digests.push_back(
          DigestRun(Items()[i], whole, 0, whole.elements(), ItemBytes(i)));
    }
    for (uint32_t f = 0; f < 2; ++f) {
      const Holding holding = StoredBy(f);
      const SavePlan plan = PlanSave(Items(), holding);
      const ShardIdentity identity{manifest.run_id, manifest.id, f, 2};
      Bytes file = EncodeShardHeader(identity);
      std::vector<std::pair<uint64_t, CodedUnit>> units;
      ZstdEncoder encoder(level, kUnitBytesMax);
      for (const WriteUnit& unit : plan.units) {
        const Bytes all = ItemBytes(unit.region);
        Bytes plain(all.begin() + f * all.size() / 2,
                    all.begin() + (f + 1) * all.size() / 2);
        plain.resize(unit.bytes);  // one unit a region
        Bytes stored(unit.bytes);
        CodedUnit coded = CodeUnit(encoder, plain,
                                   SizeOf(Items()[unit.region].dtype), stored);
        coded.offset = file.size();
        file.insert(file.end(), stored.begin(),
                    stored.begin() + coded.padded_bytes());
        units.emplace_back(unit.file_offset, coded);
      }
      std::sort(units.begin(), units.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<CodedUnit> by_place;
      for (const auto& [place, unit] : units) by_place.push_back(unit);
      const Bytes index = EncodeCodedIndex(by_place);
      const uint64_t plain_bytes = plan.index_offset - kShardBlockBytes;
      const Bytes footer = EncodeShardFooter(
          identity, file.size(), units.size(), Crc32c(index), plain_bytes);
      file.insert(file.end(), index.begin(), index.end());
      file.insert(file.end(), footer.begin(), footer.end());
      const std::string name = absl::StrFormat("shard-%05d.hf", f);
      write(name, file);
      manifest.files.push_back(
          {.name = name,
           .bytes = file.size(),
           .unit_count = static_cast<uint32_t>(units.size()),
           .crc_index = Crc32c(index),
           .chunks = plan.chunks,
           .plain_bytes = plain_bytes});
    }
    write(kManifestName, EncodeManifest(manifest));
  }
}

}  // namespace
}  // namespace holdfast::ckpt
