// Records of an unfinished conversion: what decodes encodes back, and damaged
// ones are refused whatever is wrong with them.

#include "ckpt/convert/convert_record.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

ConversionRecord SomeRecord() {
  ConversionRecord record;
  record.run_id = {1, 2, 3};
  record.source = "checkpoint step-000000300.i0002.a01";
  record.target = "tp4-pp1-dp3";
  record.form = "run";
  record.codec = "zstd:0";
  record.attributes = "00ff";
  record.step = 300;
  record.plan_hash = 0x1122334455667788;
  return record;
}

RoundRecord SomeRound(bool coded) {
  RoundRecord round;
  round.plan_hash = 7;
  round.round = 12;
  round.coded = coded;
  if (coded) {
    round.units.resize(2);
    round.units[1] = {.offset = 4096,
                      .bytes_stored = 100,
                      .bytes = 8192,
                      .crc = 5,
                      .codec = Codec::kZstd,
                      .planes = 4};
  } else {
    round.crcs = {1, 2, 0xffffffff};
  }
  round.digests = {{3, {1, 2}}, {9, {~uint64_t{0}, 4}}};
  return round;
}

TEST(ConvertRecordTest, ComesBackAsItWas) {
  const auto record = DecodeConversion(EncodeConversion(SomeRecord()));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(*record, SomeRecord());
  for (const bool coded : {false, true}) {
    const auto round = DecodeRound(EncodeRound(SomeRound(coded)));
    ASSERT_TRUE(round.ok()) << round.status();
    EXPECT_EQ(*round, SomeRound(coded));
  }
}

TEST(ConvertRecordTest, EveryFlippedByteAndEveryCutIsFound) {
  for (const auto& bytes :
       {EncodeConversion(SomeRecord()), EncodeRound(SomeRound(false)),
        EncodeRound(SomeRound(true))}) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::vector<std::byte> wrong = bytes;
      wrong[i] ^= std::byte{0x40};
      EXPECT_FALSE(DecodeConversion(wrong).ok()) << i;
      EXPECT_FALSE(DecodeRound(wrong).ok()) << i;
      const auto cut = std::span(bytes).first(i);
      EXPECT_FALSE(DecodeConversion(cut).ok()) << i;
      EXPECT_FALSE(DecodeRound(cut).ok()) << i;
    }
  }
}

TEST(ConvertRecordTest, SaysWhatDiffers) {
  const ConversionRecord there = SomeRecord();
  ConversionRecord wanted = there;
  wanted.run_id = {};
  EXPECT_EQ(ConversionDiffers(there, wanted), "");
  EXPECT_EQ(ConversionText(there), ConversionText(wanted));
  wanted.target = "tp1-pp1-dp1";
  EXPECT_THAT(ConversionDiffers(there, wanted), HasSubstr("tp4-pp1-dp3"));
  wanted = there;
  wanted.plan_hash += 1;
  EXPECT_NE(ConversionDiffers(there, wanted), "");
}

TEST(ConvertRecordTest, NamesOfRounds) {
  EXPECT_EQ(RoundRecordName(12), "conversion/round-00012");
  EXPECT_EQ(ParseRoundRecord("round-00012"), 12u);
  for (const char* name : {"round-12", "round-", "round-0001x", "record",
                           "round-99999999999", "../round-00012"}) {
    EXPECT_FALSE(ParseRoundRecord(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
