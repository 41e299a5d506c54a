// A shard's header, index and footer, and how damage to them is found.

#include "ckpt/format/shard.h"

#include <functional>

#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/format/sample_manifest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

// The block with one field changed and its checksum made good again.
std::vector<std::byte> Forge(std::vector<std::byte> block, size_t at,
                             uint8_t value) {
  block[at] = std::byte{value};
  PutCrc(&block);
  return block;
}

TEST(ShardTest, HeaderIndexAndFooterComeBack) {
  const ShardIdentity identity = SampleIdentity(1);
  const auto header = EncodeShardHeader(identity);
  EXPECT_EQ(header.size(), 4096u);
  EXPECT_EQ(*DecodeShardHeader(header), identity);

  const std::vector<Unit> units = {{4096, 8192, 7}, {12288, 4096, 8}};
  const auto index = EncodeShardIndex(units);
  EXPECT_EQ(index.size(), ShardIndexBytes(2));
  EXPECT_EQ(*DecodeShardIndex(index, 2), units);

  const auto footer = EncodeShardFooter(identity, 16384, 2, Crc32c(index));
  EXPECT_EQ(footer.size(), 4096u);
  const auto decoded = DecodeShardFooter(footer);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->identity, identity);
  EXPECT_EQ(decoded->index_offset, 16384u);
  EXPECT_EQ(decoded->unit_count, 2u);
  EXPECT_EQ(decoded->crc_index, Crc32c(index));
}

TEST(ShardTest, UnitsInTheOrderOfWritingAreListedInTheOrderOfTheFile) {
  const std::vector<Unit> written = {{12288, 4096, 8}, {4096, 8192, 7}};
  EXPECT_EQ(*DecodeShardIndex(EncodeShardIndex(written), 2),
            (std::vector<Unit>{{4096, 8192, 7}, {12288, 4096, 8}}));
}

TEST(ShardTest, AnEmptyIndexHasNoBytesAndAFullBlockOfUnitsHasOne) {
  EXPECT_EQ(EncodeShardIndex({}).size(), 0u);
  EXPECT_TRUE(DecodeShardIndex({}, 0)->empty());
  EXPECT_EQ(ShardIndexBytes(256), 4096u);
  EXPECT_EQ(ShardIndexBytes(257), 8192u);
}

TEST(ShardTest, EveryFlippedBitIsFound) {
  auto header = EncodeShardHeader(SampleIdentity(0));
  auto footer = EncodeShardFooter(SampleIdentity(0), 8192, 1, 5);
  for (size_t bit = 0; bit < 4096 * 8; bit += (bit < 800 ? 1 : 61)) {
    header[bit / 8] ^= std::byte(1 << bit % 8);
    footer[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_EQ(DecodeShardHeader(header).status().code(),
              absl::StatusCode::kDataLoss);
    EXPECT_EQ(DecodeShardFooter(footer).status().code(),
              absl::StatusCode::kDataLoss);
    header[bit / 8] ^= std::byte(1 << bit % 8);
    footer[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(ShardTest, SaysWhatItFound) {
  const auto header = EncodeShardHeader(SampleIdentity(0));
  const auto footer = EncodeShardFooter(SampleIdentity(0), 8192, 1, 5);
  EXPECT_THAT(DecodeShardFooter(header).status().ToString(),
              HasSubstr("no shard footer there"));
  EXPECT_THAT(DecodeShardHeader(footer).status().ToString(),
              HasSubstr("no shard header there"));
  EXPECT_THAT(
      DecodeShardHeader(std::span(header).first(512)).status().ToString(),
      HasSubstr("the header has 512 bytes, 4096 expected"));
  auto damaged = footer;
  damaged[20] ^= std::byte{1};
  EXPECT_THAT(DecodeShardFooter(damaged).status().ToString(),
              HasSubstr("the footer is damaged: its crc32c is"));
  const auto newer = DecodeShardHeader(Forge(header, 8, 2)).status();
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(newer.ToString(), HasSubstr("is of shard version 2"));
  EXPECT_THAT(DecodeShardHeader(Forge(header, 900, 1)).status().ToString(),
              HasSubstr("not zero where version 1 has zeros, at 900"));
  EXPECT_THAT(DecodeShardFooter(Forge(footer, 28, 1)).status().ToString(),
              HasSubstr("not zero where version 1 has zeros, at 28"));
  EXPECT_THAT(DecodeShardFooter(Forge(footer, 56, 1)).status().ToString(),
              HasSubstr("puts the index at 8193"));
}

TEST(ShardTest, AnIndexMustTileTheDataArea) {
  const auto index =
      EncodeShardIndex(std::vector<Unit>{{4096, 8192, 7}, {12288, 4096, 8}});
  for (const auto& [at, value] : std::vector<std::pair<int, uint8_t>>{
           {1, 0x20}, {9, 0x30}, {8, 1}, {10, 0x11}, {17, 0x40}, {32, 1}}) {
    auto bad = index;
    bad[at] = std::byte{value};
    EXPECT_EQ(DecodeShardIndex(bad, 2).status().code(),
              absl::StatusCode::kDataLoss)
        << "byte " << at;
  }
  EXPECT_EQ(DecodeShardIndex(index, 1).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeShardIndex(index, 300).status().code(),
            absl::StatusCode::kDataLoss);
}

// Stored in another order than they lie in the plain image.
std::vector<CodedUnit> SomeCodedUnits() {
  return {{12288, 5000, 16384, 7, Codec::kZstd, 4},
          {4096, 8192, 8192, 8, Codec::kNone, 1},
          {20480, 1, 8192, 9, Codec::kZstd, 1}};
}

TEST(ShardTest, ACodedIndexAndItsFooterComeBack) {
  const auto index = EncodeCodedIndex(SomeCodedUnits());
  EXPECT_EQ(index.size(), CodedIndexBytes(3));
  const auto units = DecodeCodedIndex(index, 3);
  ASSERT_TRUE(units.ok()) << units.status();
  EXPECT_EQ(*units, SomeCodedUnits());
  EXPECT_EQ(CodedIndexBytes(170), 4096u);
  EXPECT_EQ(CodedIndexBytes(171), 8192u);
  const auto footer = DecodeShardFooter(
      EncodeShardFooter(SampleIdentity(1), 24576, 3, 5, 32768));
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->plain_bytes, 32768u);
}

TEST(ShardTest, ACodedIndexSaysOnlyWhatCanBe) {
  const std::vector<std::function<void(std::vector<CodedUnit>*)>> changes = {
      [](auto* u) { (*u)[0].offset = 16384; },         // a hole
      [](auto* u) { (*u)[2].offset = 12288; },         // one over another
      [](auto* u) { (*u)[1].offset = ~uint64_t{0}; },  // beyond everything
      [](auto* u) { (*u)[0].bytes_stored = 0; },
      [](auto* u) { (*u)[0].bytes_stored = 8193; },  // the next is at 20480
      [](auto* u) { (*u)[0].bytes_stored = ~uint32_t{0}; },
      [](auto* u) { (*u)[0].bytes = 5000; },
      [](auto* u) { (*u)[0].bytes = 0; },
      [](auto* u) { (*u)[0].bytes = 8192; },  // would not have saved a block
      [](auto* u) { (*u)[0].bytes = (1 << 20) + 4096; },
      [](auto* u) { (*u)[1].bytes_stored = 8191; },
      [](auto* u) { (*u)[1].planes = 2; },
      [](auto* u) { (*u)[0].planes = 3; },
      [](auto* u) { (*u)[0].planes = 0; },
      [](auto* u) { (*u)[0].codec = static_cast<Codec>(2); }};
  const auto encode = [](const std::vector<CodedUnit>& units) {
    Writer out;
    for (const CodedUnit& unit : units) {
      out.Fixed(unit.offset);
      out.Fixed(unit.bytes_stored);
      out.Fixed(unit.bytes);
      out.Fixed(unit.crc);
      out.Fixed(static_cast<uint8_t>(unit.codec));
      out.Fixed(unit.planes);
      out.Fixed(uint16_t{0});
    }
    out.ZerosUntil(4096);
    return out.Take();
  };
  EXPECT_TRUE(DecodeCodedIndex(encode(SomeCodedUnits()), 3).ok());
  for (size_t i = 0; i < changes.size(); ++i) {
    std::vector<CodedUnit> units = SomeCodedUnits();
    changes[i](&units);
    EXPECT_EQ(DecodeCodedIndex(encode(units), 3).status().code(),
              absl::StatusCode::kDataLoss)
        << i;
  }
  auto bytes = encode(SomeCodedUnits());
  for (const size_t zero : {22, 23, 72, 4095}) {
    bytes[zero] = std::byte{1};
    EXPECT_EQ(DecodeCodedIndex(bytes, 3).status().code(),
              absl::StatusCode::kDataLoss)
        << zero;
    bytes[zero] = std::byte{0};
  }
  EXPECT_EQ(DecodeCodedIndex(bytes, 2).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeCodedIndex(bytes, 300).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace holdfast::ckpt
