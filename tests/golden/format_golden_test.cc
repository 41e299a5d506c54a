// A checkpoint that was written once, by the program of the day, and is read by
// every later one: tests/golden/format-v1. It is never written again; a new
// format version gets a directory of its own.
//
// Two ranks, items of every width: a matrix stored by columns, runs
// that end in mid-row, a scalar, four dimensions. The values are stated here,
// apart from any code that saves.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/save_plan.h"
#include "ckpt/plan/scatter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

constexpr char kDirectory[] = HOLDFAST_SOURCE_DIR "/tests/golden/format-v1/";
constexpr char kLogicalDigest[] = "e4837a595515005ba2320c93db21318a";

const std::vector<ItemSpec>& Items() {
  static const auto* const items =
      new std::vector<ItemSpec>{{"count", "state", DType::kI64, {}},
                                {"embed", "weight", DType::kBf16, {5, 67}},
                                {"mask", "state", DType::kU8, {2, 3, 2, 2}},
                                {"norm", "exp_avg", DType::kF32, {70}},
                                {"scale", "state", DType::kF64, {3}}};
  return *items;
}

// Element `index` of the row-major order of item `item`.
uint64_t ValueOf(ItemIndex item, int64_t index) {
  return 0xff00ff00ff00ff00 + 0x0101010101010101 * item +
         0x0001000100010001 * static_cast<uint64_t>(index * index);
}

Box MakeBox(std::vector<int64_t> first, std::vector<int64_t> count) {
  Box box = WholeBox(count);
  std::copy(first.begin(), first.end(), box.first.begin());
  return box;
}

// What each of the two ranks stored.
Holding StoredBy(int rank) {
  const auto whole = [](ItemIndex item) {
    return WholeBox(Items()[item].shape);
  };
  Holding holding;
  holding.region_bytes = {4 * 4096};
  if (rank == 0) {
    holding.fragments = {
        {.item = 1, .part = MakeBox({0, 0}, {5, 40}), .count = 200},
        {.item = 3, .part = whole(3), .count = 33, .offset = 4096},
        {.item = 2, .part = whole(2), .count = 13, .offset = 8192},
        {.item = 0, .part = whole(0), .count = 1, .offset = 12288}};
  } else {
    holding.fragments = {
        {.item = 1, .part = MakeBox({0, 40}, {5, 27}), .count = 135},
        {.item = 3, .part = whole(3), .first = 33, .count = 37, .offset = 4096},
        {.item = 2, .part = whole(2), .first = 13, .count = 11, .offset = 8192},
        {.item = 4, .part = whole(4), .count = 3, .offset = 12288}};
  }
  return holding;
}

// Every item whole, one after the other, on blocks: what one rank wants.
Holding WantedWhole() {
  Holding holding;
  uint64_t offset = 0;
  for (ItemIndex i = 0; i < Items().size(); ++i) {
    const Box whole = WholeBox(Items()[i].shape);
    holding.fragments.push_back({.item = i,
                                 .part = whole,
                                 .count = whole.elements(),
                                 .offset = offset});
    offset += 4096;
  }
  holding.region_bytes = {offset};
  return holding;
}

// An item's elements, whole.
Bytes ItemBytes(ItemIndex item) {
  const int size = SizeOf(Items()[item].dtype);
  Bytes bytes(WholeBox(Items()[item].shape).elements() * size);
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const uint64_t value = ValueOf(item, i);
    std::memcpy(bytes.data() + i * size, &value, size);
  }
  return bytes;
}

Bytes ReadFile(const std::string& name) {
  std::ifstream in(kDirectory + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

class FormatGoldenTest : public testing::Test {
 protected:
  void SetUp() override {
    auto decoded = DecodeManifest(ReadFile(kManifestName));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    manifest_ = *std::move(decoded);
    for (const ShardFile& file : manifest_.files) {
      files_.push_back(ReadFile(file.name));
    }
  }

  Manifest manifest_;
  std::vector<Bytes> files_;
};

TEST_F(FormatGoldenTest, TheManifestSaysWhatItSaid) {
  EXPECT_EQ(manifest_.format_version, 1u);
  EXPECT_EQ(manifest_.id,
            (CheckpointId{.step = 4242, .incarnation = 7, .attempt = 3}));
  EXPECT_EQ(ToHex(manifest_.run_id), "000102030405060708090a0b0c0d0e0f");
  EXPECT_EQ(manifest_.commit_number, 5u);
  EXPECT_EQ(manifest_.parent,
            (CheckpointId{.step = 4000, .incarnation = 6, .attempt = 1}));
  EXPECT_EQ(manifest_.time_unix_ms, 1764486000000);
  EXPECT_EQ(manifest_.world, 2u);
  EXPECT_EQ(manifest_.layout, "two columns");
  EXPECT_EQ(manifest_.plan_hash, 0x0123456789abcdefu);
  EXPECT_EQ(manifest_.features_may, std::vector<std::string>{"golden"});
  EXPECT_EQ(manifest_.items, Items());
  EXPECT_THAT(manifest_.attributes,
              testing::ElementsAre(testing::Pair(".place", "tests/golden"),
                                   testing::Pair("data.cursor", "99"),
                                   testing::Pair("step", "4242")));
}

TEST_F(FormatGoldenTest, EveryUnitOfEveryFileIsWhole) {
  ASSERT_EQ(files_.size(), 2u);
  for (uint32_t f = 0; f < 2; ++f) {
    const ShardIdentity identity{.run_id = manifest_.run_id,
                                 .id = manifest_.id,
                                 .file = f,
                                 .file_count = 2};
    const std::span<const std::byte> file = files_[f];
    ASSERT_EQ(file.size(), manifest_.files[f].bytes);
    const auto header = DecodeShardHeader(file.first(4096));
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(*header, identity);
    const auto footer = DecodeShardFooter(file.last(4096));
    ASSERT_TRUE(footer.ok()) << footer.status();
    EXPECT_EQ(footer->identity, identity);
    EXPECT_EQ(footer->crc_index, manifest_.files[f].crc_index);
    EXPECT_EQ(footer->unit_count, manifest_.files[f].unit_count);
    const auto index =
        file.subspan(footer->index_offset, ShardIndexBytes(footer->unit_count));
    EXPECT_EQ(Crc32c(index), footer->crc_index);
    const auto units = DecodeShardIndex(index, footer->unit_count);
    ASSERT_TRUE(units.ok()) << units.status();
    for (const Unit& unit : *units) {
      EXPECT_EQ(Crc32c(file.subspan(unit.offset, unit.bytes)), unit.crc);
    }
  }
}

TEST_F(FormatGoldenTest, EveryElementComesBack) {
  const Holding wanted = WantedWhole();
  const auto plan = PlanLoad(manifest_, Items(), wanted);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Bytes memory(wanted.region_bytes[0]);
  const std::vector<std::span<std::byte>> regions = {memory};
  const Scatter scatter(*plan);
  for (uint32_t f = 0; f < files_.size(); ++f) {
    scatter.ScatterBytes(f, 0, files_[f], regions);
  }
  for (const Fragment& fragment : wanted.fragments) {
    const Bytes expected = ItemBytes(fragment.item);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           memory.begin() + fragment.offset))
        << Items()[fragment.item].name;
  }
}

TEST_F(FormatGoldenTest, TheDigestsAreThoseOfTheValues) {
  for (ItemIndex i = 0; i < Items().size(); ++i) {
    const Box whole = WholeBox(Items()[i].shape);
    EXPECT_EQ(manifest_.item_digests[i],
              DigestRun(Items()[i], whole, 0, whole.elements(), ItemBytes(i)))
        << Items()[i].name;
  }
  EXPECT_EQ(ToHex(LogicalDigest(manifest_)), kLogicalDigest);
}

// How it was made: run once with --gtest_also_run_disabled_tests, and
// committed. It refuses to write over a checkpoint.
TEST(FormatGoldenWriter, DISABLED_WritesItOnce) {
  ASSERT_FALSE(std::filesystem::exists(kDirectory));
  std::filesystem::create_directory(kDirectory);
  const auto write = [](const std::string& name, const Bytes& bytes) {
    std::ofstream out(kDirectory + name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    ASSERT_TRUE(out.good());
  };
  Manifest manifest;
  for (size_t i = 0; i < manifest.run_id.size(); ++i) manifest.run_id[i] = i;
  manifest.id = {.step = 4242, .incarnation = 7, .attempt = 3};
  manifest.commit_number = 5;
  manifest.parent = CheckpointId{.step = 4000, .incarnation = 6, .attempt = 1};
  manifest.time_unix_ms = 1764486000000;
  manifest.world = 2;
  manifest.layout = "two columns";
  manifest.plan_hash = 0x0123456789abcdef;
  manifest.features_may = {"golden"};
  manifest.items = Items();
  manifest.item_digests.resize(Items().size());
  manifest.attributes = {
      {".place", "tests/golden"}, {"data.cursor", "99"}, {"step", "4242"}};
  for (uint32_t f = 0; f < 2; ++f) {
    const Holding holding = StoredBy(f);
    Bytes memory(holding.region_bytes[0]);
    for (const Fragment& fragment : holding.fragments) {
      // Each row of each box of the run, from the item's whole bytes.
      const Bytes all = ItemBytes(fragment.item);
      const Box whole = WholeBox(Items()[fragment.item].shape);
      const int64_t size = SizeOf(Items()[fragment.item].dtype);
      uint64_t to = fragment.offset;
      for (int64_t e = fragment.first; e < fragment.first + fragment.count;
           ++e) {
        const Box one = BoxesOfRun(fragment.part, e, 1)[0];
        int64_t index = 0;
        for (int d = 0; d < whole.dimensions; ++d) {
          index = index * whole.count[d] + one.first[d];
        }
        std::copy_n(all.begin() + index * size, size, memory.begin() + to);
        to += size;
      }
    }
    const SavePlan plan = PlanSave(Items(), holding);
    const ShardIdentity identity{.run_id = manifest.run_id,
                                 .id = manifest.id,
                                 .file = f,
                                 .file_count = 2};
    Bytes file = EncodeShardHeader(identity);
    file.resize(plan.index_offset);
    std::vector<Unit> units;
    for (const WriteUnit& unit : plan.units) {
      const auto bytes =
          std::span(memory).subspan(unit.region_offset, unit.bytes);
      std::copy(bytes.begin(), bytes.end(), file.begin() + unit.file_offset);
      units.push_back({unit.file_offset, unit.bytes, Crc32c(bytes)});
    }
    for (const DigestPiece& piece : plan.pieces) {
      const ItemSpec& item = Items()[piece.item];
      manifest.item_digests[piece.item] += DigestRun(
          item, piece.part, piece.first, piece.count,
          std::span(memory).subspan(
              plan.units[piece.unit].region_offset + piece.unit_offset,
              piece.count * SizeOf(item.dtype)));
    }
    const Bytes index = EncodeShardIndex(units);
    const Bytes footer = EncodeShardFooter(identity, plan.index_offset,
                                           units.size(), Crc32c(index));
    file.insert(file.end(), index.begin(), index.end());
    file.insert(file.end(), footer.begin(), footer.end());
    const std::string name = absl::StrFormat("shard-%05d.hf", f);
    write(name, file);
    manifest.files.push_back({.name = name,
                              .bytes = file.size(),
                              .unit_count = static_cast<uint32_t>(units.size()),
                              .crc_index = Crc32c(index),
                              .chunks = plan.chunks});
  }
  write(kManifestName, EncodeManifest(manifest));
}

}  // namespace
}  // namespace holdfast::ckpt
