// Manifests come back as they were; damaged or newer ones are refused.

#include "ckpt/format/manifest.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>

#include "ckpt/format/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/format/sample_manifest.h"

namespace {

thread_local size_t largest_allocation = 0;

}  // namespace

// Never inlined: g++ would take the pair apart and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  largest_allocation = std::max(largest_allocation, size);
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size,
                                     const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

Box MakeBox(std::vector<int64_t> first, std::vector<int64_t> count) {
  Box box = WholeBox(count);
  std::copy(first.begin(), first.end(), box.first.begin());
  return box;
}

// Every field at work: features, no parent, a negative time, four dimensions, a
// scalar, parts that are not whole, a gap before a chunk, an empty file.
Manifest RichManifest() {
  Manifest m = SampleManifest();
  m.features_may = {"compact", "zebra"};
  m.parent.reset();
  m.time_unix_ms = -5;
  m.items = {{"a.deep", "weight", DType::kU8, {2, 3, 4, 5}},
             {"a.deeper", "weight", DType::kF64, {}}};
  m.files[0].bytes = 4096 * 7;
  m.files[0].unit_count = 3;
  m.files[0].chunks = {{.item = 1,
                        .part = WholeBox({}),
                        .first = 0,
                        .count = 1,
                        .offset = 4096,
                        .bytes_stored = 8},
                       {.item = 0,
                        .part = MakeBox({0, 0, 0, 2}, {2, 3, 4, 3}),
                        .first = 0,
                        .count = 50,
                        .offset = 12288,
                        .bytes_stored = 50}};
  m.files[1].bytes = 4096 * 5;
  m.files[1].unit_count = 2;
  m.files[1].chunks = {{.item = 0,
                        .part = MakeBox({0, 0, 0, 2}, {2, 3, 4, 3}),
                        .first = 50,
                        .count = 22,
                        .offset = 4096,
                        .bytes_stored = 22},
                       {.item = 0,
                        .part = MakeBox({0, 0, 0, 0}, {2, 3, 4, 2}),
                        .first = 0,
                        .count = 48,
                        .offset = 8192,
                        .bytes_stored = 48}};
  m.files.push_back({.name = "shard-00002.hf", .bytes = 8192, .chunks = {}});
  return m;
}

std::string DecodeError(const std::vector<std::byte>& bytes,
                        absl::StatusCode code) {
  const auto decoded = DecodeManifest(bytes);
  EXPECT_EQ(decoded.status().code(), code) << decoded.status();
  return decoded.status().ToString();
}

TEST(ManifestTest, FilesMayLieInDirectoriesThatOlderReadersRefuseByName) {
  Manifest m = SampleManifest();
  m.files[0].name = "d0000/shard-00000.hf";
  m.files[1].name = "d0001/shard-00001.hf";
  m.features_must = {"directories"};
  const absl::StatusOr<Manifest> back = DecodeManifest(EncodeManifest(m));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, m);
}

TEST(ManifestTest, ComesBackAsItWas) {
  for (const Manifest& manifest :
       {SampleManifest(), RichManifest(), Manifest{}}) {
    const auto decoded = DecodeManifest(EncodeManifest(manifest));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, manifest);
  }
}

TEST(ManifestTest, EveryFlippedBitAndEveryLengthIsDataLoss) {
  const std::vector<std::byte> good = EncodeManifest(SampleManifest());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    DecodeError(bytes, absl::StatusCode::kDataLoss);
  }
  for (size_t size = 0; size < good.size(); ++size) {
    DecodeError({good.begin(), good.begin() + size},
                absl::StatusCode::kDataLoss);
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  DecodeError(longer, absl::StatusCode::kDataLoss);
}

TEST(ManifestTest, RefusesWhatItIsTooOldFor) {
  auto bytes = EncodeManifest(SampleManifest());
  bytes[8] = std::byte{3};
  bytes[12] = std::byte{2};
  PutCrc(&bytes);
  EXPECT_THAT(DecodeError(bytes, absl::StatusCode::kFailedPrecondition),
              HasSubstr("format version 3 and needs a reader of version 2; "
                        "this program reads version 1"));

  // A newer writer that old readers can still read.
  Manifest newer = SampleManifest();
  newer.format_version = 3;
  newer.features_may = {"hints"};
  EXPECT_EQ(*DecodeManifest(EncodeManifest(newer)), newer);
}

TEST(ManifestTest, RefusesAFeatureThatItMustUnderstandByName) {
  // The list of such features is the first thing in the body, and empty here.
  auto bytes = EncodeManifest(SampleManifest());
  const std::string feature = "\x01\x07parquet";
  bytes.erase(bytes.begin() + 24);
  for (size_t i = 0; i < feature.size(); ++i) {
    bytes.insert(bytes.begin() + 24 + i, std::byte(feature[i]));
  }
  const uint64_t body = bytes.size() - 28;
  std::memcpy(bytes.data() + 16, &body, 8);
  PutCrc(&bytes);
  EXPECT_THAT(DecodeError(bytes, absl::StatusCode::kFailedPrecondition),
              HasSubstr("needs the feature 'parquet'"));
}

TEST(ManifestTest, ACodedFileComesBackAndIsAFeatureToKnow) {
  const Manifest m = CodedManifest();
  const auto bytes = EncodeManifest(m);
  const auto back = DecodeManifest(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, m);
  EXPECT_TRUE(back->files[0].coded());
  EXPECT_EQ(back->files[0].data_end(), 16384u);
  EXPECT_EQ(back->files[0].index_bytes(), CodedIndexBytes(2));
  // Beside it there may be files that are not.
  Manifest mixed = SampleManifest();
  mixed.features_must = {kZstdName};
  mixed.files[0].plain_bytes = 8192;
  const auto again = DecodeManifest(EncodeManifest(mixed));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, mixed);
  EXPECT_EQ(LogicalDigest(mixed), LogicalDigest(SampleManifest()));
}

TEST(ManifestTest, TheFlagThatIsAlwaysSetMustBe) {
  // The one chunk of the second file is the last thing before the attributes.
  const std::vector<std::byte> good = EncodeManifest(SampleManifest());
  for (const auto& [flags, fine] :
       {std::pair(0x1d, true), {0x0d, false}, {0x3d, false}, {0x5d, false}}) {
    std::vector<std::byte> bytes = good;
    ASSERT_EQ(bytes[0xc3], std::byte{0x1d});
    bytes[0xc3] = static_cast<std::byte>(flags);
    PutCrc(&bytes);
    EXPECT_EQ(DecodeManifest(bytes).ok(), fine) << flags;
  }
}

TEST(ManifestTest, EachRuleNamesWhatBreaksIt) {
  struct Case {
    std::function<void(Manifest*)> change;
    std::string says;
  };
  const std::vector<Case> cases = {
      {[](Manifest* m) { m->reader_version_min = 0; }, "from version 0"},
      {[](Manifest* m) { m->format_version = 0; }, "format version 0"},
      {[](Manifest* m) { m->id.step = -1; }, "a step below 0"},
      {[](Manifest* m) { m->parent->step = -1; }, "a step below 0"},
      {[](Manifest* m) {
         m->features_may = {"b", "a"};
       },
       "features to know of are empty or not in order at 'a'"},
      {[](Manifest* m) { m->features_may = {""}; }, "empty or not in order"},
      {[](Manifest* m) { m->item_digests.pop_back(); },
       "2 items and 1 digests"},
      {[](Manifest* m) { std::swap(m->items[0], m->items[1]); },
       "not in order at item 'bias' (master)"},
      {[](Manifest* m) { m->items[1] = m->items[0]; }, "not in order"},
      {[](Manifest* m) { m->items[0].name = ""; }, "a name or kind that is"},
      {[](Manifest* m) { m->items[0].kind = std::string("a\0b", 3); },
       "holds a zero byte"},
      {[](Manifest* m) { m->items[0].dtype = DType{9}; }, "has dtype 9"},
      {[](Manifest* m) { m->items[0].dtype = DType{0}; }, "has dtype 0"},
      {[](Manifest* m) {
         m->items[0].shape = {1, 1, 1, 1, 3};
       },
       "has 5 dimensions"},
      {[](Manifest* m) { m->items[0].shape = {0}; },
       "a dimension of 0 elements"},
      {[](Manifest* m) {
         m->items[0].shape = {1LL << 40, 1LL << 40};
       },
       "at most 2^56"},
      {[](Manifest* m) { m->items[0].shape = {4}; },
       "lists 3 of the 4 elements of item 'bias' (master)"},
      {[](Manifest* m) { m->files.pop_back(); },
       "lists 14 of the 24 elements of item 'w' (weight)"},
      {[](Manifest* m) { m->files[1].name = "a/b"; }, "a file 'a/b'"},
      {[](Manifest* m) { m->files[1].name = "d0000/d0001/b"; },
       "a file 'd0000/d0001/b'"},
      {[](Manifest* m) { m->files[1].name = "d0000/.b"; }, "a file 'd0000/.b'"},
      {[](Manifest* m) { m->files[1].name = "d0000/"; }, "a file 'd0000/'"},
      {[](Manifest* m) { m->files[1].name = "d0000/MANIFEST"; },
       "a file 'd0000/MANIFEST'"},
      {[](Manifest* m) { m->files[1].name = "d00000/b"; }, "a file 'd00000/b'"},
      {[](Manifest* m) { m->files[1].name = "d0000"; }, "a file 'd0000'"},
      {[](Manifest* m) { m->files[1].name = "d0000/b"; },
       "lists files in directories, its features say otherwise"},
      {[](Manifest* m) { m->features_must = {"directories"}; },
       "lists no files in directories"},
      {[](Manifest* m) { m->files[1].name = ".."; }, "a file '..'"},
      {[](Manifest* m) { m->files[1].name = "MANIFEST"; }, "a file 'MANIFEST'"},
      {[](Manifest* m) { m->files[1].name = ""; }, "a file ''"},
      // A name that a Storage keeps for itself and CHECKs.
      {[](Manifest* m) { m->files[1].name = ".tmp.7.1"; }, "a file '.tmp.7.1'"},
      {[](Manifest* m) { m->files[1].name = "shard-00000.hf"; },
       "lists shard-00000.hf twice"},
      {[](Manifest* m) { m->files[0].bytes += 1; }, "20481 bytes in 2 units"},
      {[](Manifest* m) { m->files[0].bytes = 4096; }, "which cannot be"},
      {[](Manifest* m) { m->files[0].unit_count = 3; }, "which cannot be"},
      {[](Manifest* m) { m->files[0].bytes += 4 << 20; }, "which cannot be"},
      {[](Manifest* m) { m->files[0].plain_bytes = 8192; },
       "has a coded file and lacks the feature 'zstd'"},
      {[](Manifest* m) { m->features_must = {"zstd"}; },
       "has no coded file and names the feature 'zstd'"},
      {[](Manifest* m) {
         m->features_must = {"zstd"};
         m->files[0].plain_bytes = 8193;
       },
       "with 20480 bytes in 2 units of 8193 plain bytes, which cannot be"},
      {[](Manifest* m) {  // Stored longer than plain.
         m->features_must = {"zstd"};
         m->files[0].plain_bytes = 4096;
       },
       "which cannot be"},
      {[](Manifest* m) {
         m->features_must = {"zstd"};
         m->files[0].plain_bytes = uint64_t{3} << 20;
       },
       "which cannot be"},
      {[](Manifest* m) { m->files[0].chunks[0].item = 2; }, "item 2 of 2"},
      {[](Manifest* m) { m->files[0].chunks[0].part.count[0] = 5; },
       "lies outside of [0:4, 0:6]"},
      {[](Manifest* m) { m->files[0].chunks[0].part.first[1] = 1; },
       "lies outside of [0:4, 0:6]"},
      {[](Manifest* m) { m->files[0].chunks[0].part.count[3] = 1; },
       "lies outside of"},
      {[](Manifest* m) { m->files[0].chunks[0].count = 0; },
       "elements 0 + 0 of a part"},
      {[](Manifest* m) { m->files[1].chunks[0].count = 11; },
       "elements 14 + 11 of a part [0:4, 0:6] of item 'w' (weight)"},
      {[](Manifest* m) { m->files[1].chunks[0].first = -1; },
       "elements -1 + 10"},
      {[](Manifest* m) { m->files[0].chunks[0].bytes_stored = 30; },
       "30 bytes for 14 elements"},
      {[](Manifest* m) { m->files[0].chunks[1].offset = 8200; },
       "chunks start on multiples of 4096 and end by 12288"},
      {[](Manifest* m) { m->files[0].chunks[1].offset = 12288; },
       "chunks start on multiples of 4096 and end by 12288"},
      {[](Manifest* m) { m->files[0].chunks[1].offset = 4096; },
       "shard-00000.hf: a chunk at 4096, inside or before the one that ends "
       "at 4124"},
      {[](Manifest* m) { m->files[1].chunks[0].first = 13; },
       "lists [2:3, 1:2] of item 'w' (weight) twice: in shard-00000.hf at 4096 "
       "and in shard-00001.hf at 4096"}};
  for (const Case& c : cases) {
    Manifest m = SampleManifest();
    c.change(&m);
    const absl::Status status = ValidateManifest(m);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.says;
    EXPECT_THAT(status.ToString(), HasSubstr(c.says));
  }
}

// A body in its frame, with a checksum that is right.
std::vector<std::byte> Framed(const Writer& body) {
  Writer out;
  const std::vector<std::byte> sample = EncodeManifest(SampleManifest());
  out.Raw(sample.data(), 16);  // magic, versions
  out.Fixed(uint64_t{body.bytes().size()});
  out.Raw(body.bytes().data(), body.bytes().size());
  out.Fixed(Crc32c(out.bytes()));
  return out.Take();
}

TEST(ManifestTest, ACountThatTheBytesDoNotBearOutTakesNoMemory) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto up_to_items = [](Writer* out) {
    out->Varint(0);  // features_must
    out->Varint(0);  // features_may
    out->Fixed(SampleRunId());
    for (int i = 0; i < 4; ++i) out->Varint(1);  // id, commit number
    out->Fixed(uint8_t{0});                      // no parent
    out->Varint(0);                              // time
    out->Varint(1);                              // world
    out->String("here");
    out->Fixed(uint64_t{0});  // plan hash
  };
  std::vector<Writer> bodies(3);
  bodies[0].Varint(kBytes);  // so many features
  up_to_items(&bodies[1]);
  bodies[1].Varint(1);  // an item...
  bodies[1].Varint(0);
  bodies[1].String("w");
  bodies[1].String("weight");
  bodies[1].Fixed(uint8_t{3});
  bodies[1].Varint(kBytes);  // ...of so many dimensions
  up_to_items(&bodies[2]);
  bodies[2].Varint(0);  // no items
  bodies[2].Varint(1);  // a file...
  bodies[2].String("shard-00000.hf");
  bodies[2].Varint(16384);
  bodies[2].Varint(1);
  bodies[2].Fixed(uint32_t{0});
  bodies[2].Varint(kBytes / 2);  // ...of so many chunks
  for (Writer& body : bodies) {
    body.ZerosUntil(body.bytes().size() + kBytes + 100);
    const std::vector<std::byte> bytes = Framed(body);
    largest_allocation = 0;
    const auto manifest = DecodeManifest(bytes);
    EXPECT_LT(largest_allocation, size_t{1} << 20) << manifest.status();
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss)
        << manifest.status();
  }
}

TEST(ManifestTest, PartsMayOverlapAsLongAsTheirRunsDoNot) {
  Manifest m = SampleManifest();
  // Rows 2 to 3 again, now as two columns of rows, beside the first 12 elements
  // of the whole.
  m.files[0].chunks[0].count = 12;
  m.files[0].chunks[0].bytes_stored = 24;
  Chunk& left = m.files[1].chunks[0];
  left.part = MakeBox({0, 0}, {4, 2});
  left.first = 4;
  left.count = 4;
  left.bytes_stored = 8;
  Chunk right = left;
  right.part = MakeBox({2, 2}, {2, 4});
  right.first = 0;
  right.count = 8;
  right.bytes_stored = 16;
  right.offset = 8192;
  m.files[1].chunks.push_back(right);
  m.files[1].bytes = 20480;
  m.files[1].unit_count = 2;
  EXPECT_TRUE(ValidateManifest(m).ok()) << ValidateManifest(m);

  m.files[1].chunks[0].first = 3;  // Row 1, column 1: stored by the whole, too.
  EXPECT_THAT(ValidateManifest(m).ToString(),
              HasSubstr("lists [1:2, 1:2] of item 'w' (weight) twice"));
}

// Many parts side by side, as columns of one tensor.
TEST(ManifestTest, ManyPartsAreCheckedInTimeThatGrowsWithTheirNumber) {
  constexpr int64_t kColumns = 60'000;
  Manifest m = SampleManifest();
  m.items = {{"w", "weight", DType::kF32, {4, kColumns}}};
  m.item_digests.resize(1);
  m.files.resize(1);
  ShardFile& file = m.files[0];
  file.chunks.clear();
  for (int64_t column = 0; column < kColumns; ++column) {
    file.chunks.push_back(
        {.item = 0,
         .part = MakeBox({0, column}, {4, 1}),
         .first = 0,
         .count = 4,
         .offset = kShardBlockBytes * (1 + static_cast<uint64_t>(column)),
         .bytes_stored = 16});
  }
  file.unit_count = kColumns;
  file.bytes = kShardBlockBytes * (2 + kColumns) + ShardIndexBytes(kColumns);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(ValidateManifest(m).ok()) << ValidateManifest(m);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  // One column twice, another not at all.
  file.chunks[7].part.first[1] = 20'000;
  EXPECT_THAT(ValidateManifest(m).ToString(),
              HasSubstr("lists [0:4, 20000:20001] of item 'w' (weight) twice"));
}

TEST(ManifestTest, TheLogicalDigestSeesTheStateAndNothingElse) {
  const Digest128 digest = LogicalDigest(SampleManifest());
  Manifest same = SampleManifest();
  same.id = {.step = 121, .incarnation = 9, .attempt = 9};
  same.run_id[0] ^= 1;
  same.parent.reset();
  same.time_unix_ms = 0;
  same.world = 7;
  same.layout = "elsewhere";
  same.files.clear();
  same.attributes[".host"] = "n043";
  EXPECT_EQ(LogicalDigest(same), digest);

  const std::vector<std::function<void(Manifest*)>> changes = {
      [](Manifest* m) { m->item_digests[1].high ^= 1; },
      [](Manifest* m) { m->items[0].name = "bia"; },
      [](Manifest* m) { m->items[0].kind = "exp_avg"; },
      [](Manifest* m) { m->items[0].dtype = DType::kI32; },
      [](Manifest* m) {
        m->items[1].shape = {6, 4};
      },
      [](Manifest* m) { m->attributes["step"] = "121"; },
      [](Manifest* m) { m->attributes.erase("step"); }};
  for (const auto& change : changes) {
    Manifest other = SampleManifest();
    change(&other);
    EXPECT_NE(LogicalDigest(other), digest);
  }
}

TEST(ManifestDeathTest, IsNotWrittenWhenItBreaksItsRules) {
  Manifest m = SampleManifest();
  m.files.pop_back();
  EXPECT_DEATH(EncodeManifest(m), "lists 14 of the 24 elements");
}

}  // namespace
}  // namespace holdfast::ckpt
