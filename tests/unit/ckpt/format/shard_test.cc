// A shard's header, index and footer, and how damage to them is found.

#include "ckpt/format/shard.h"

#include "ckpt/format/checksum.h"
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

}  // namespace
}  // namespace holdfast::ckpt
