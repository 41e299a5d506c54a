// The header's worked example byte by byte, and what is refused with which
// words. The bytes are Megatron's: its own reader was read, not ours.

#include "trainer/data/indexed_format.h"

#include <string>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::byte> Bytes(std::string_view text) {
  std::vector<std::byte> bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

// Two documents, 3 and 1 tokens of u16.
constexpr std::string_view kExample(
    "MMIDIDX\0\0"
    "\1\0\0\0\0\0\0\0"
    "\x08"
    "\2\0\0\0\0\0\0\0"
    "\3\0\0\0\0\0\0\0"
    "\3\0\0\0"
    "\1\0\0\0"
    "\0\0\0\0\0\0\0\0"
    "\6\0\0\0\0\0\0\0"
    "\0\0\0\0\0\0\0\0"
    "\1\0\0\0\0\0\0\0"
    "\2\0\0\0\0\0\0\0",
    82);

std::string Refusal(std::vector<std::byte> bytes, uint64_t bin_bytes = 8) {
  const auto index = DecodeIndex(bytes, bin_bytes, "a.idx");
  EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(index.status().message());
}

std::string RefusalWith(size_t offset, char value) {
  std::vector<std::byte> bytes = Bytes(kExample);
  bytes[offset] = static_cast<std::byte>(value);
  return Refusal(bytes);
}

TEST(IndexedFormatTest, WritesMegatronsBytes) {
  const std::vector<int32_t> lengths = {3, 1};
  const std::vector<int64_t> documents = {0, 1, 2};
  EXPECT_EQ(EncodeIndex(TokenType::kU16, lengths, documents), Bytes(kExample));
}

TEST(IndexedFormatTest, ReadsThemBack) {
  const auto index = DecodeIndex(Bytes(kExample), 8, "a.idx");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(*index, (IndexSummary{TokenType::kU16, 2, 2, 4}));
}

TEST(IndexedFormatTest, ReadsMultimodalSetsWithoutTheirModes) {
  std::vector<std::byte> bytes = Bytes(kExample);
  bytes.resize(bytes.size() + 2);
  EXPECT_TRUE(DecodeIndex(bytes, 8, "a.idx").ok());
}

TEST(IndexedFormatTest, RefusesEveryTruncation) {
  const std::vector<std::byte> whole = Bytes(kExample);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodeIndex(std::span(whole).first(size), 8, "a.idx").ok())
        << size;
  }
}

TEST(IndexedFormatTest, SaysWhatIsWrong) {
  EXPECT_THAT(Refusal(Bytes("text")), StartsWith("a.idx: 4 bytes, but"));
  EXPECT_THAT(RefusalWith(0, 'X'), HasSubstr("does not start with MMIDIDX"));
  EXPECT_THAT(RefusalWith(9, 2), HasSubstr("offset 9: version 2, expected 1"));
  EXPECT_THAT(RefusalWith(17, 7),
              HasSubstr("token type 7 (floating point), expected an integer"));
  EXPECT_THAT(RefusalWith(17, 9), HasSubstr("token type 9, expected"));
  EXPECT_THAT(RefusalWith(18, 1), HasSubstr("82 bytes, but 1 sequences"));
  EXPECT_THAT(RefusalWith(25, 1), HasSubstr("do not fit in 82 bytes"));
  EXPECT_THAT(RefusalWith(37, '\x80'),
              HasSubstr("offset 34: sequence 0 has a length of -2147483645"));
  EXPECT_THAT(RefusalWith(50, 4),
              HasSubstr("offset 50: sequence 1 starts at byte 4 of the .bin, "
                        "expected 6"));
  EXPECT_THAT(RefusalWith(58, 1),
              HasSubstr("offset 58: document 0 starts at sequence 1"));
  EXPECT_THAT(RefusalWith(74, 0), HasSubstr("offset 74: document 2 starts at "
                                            "sequence 0, expected at least 1"));
  EXPECT_THAT(RefusalWith(74, 3), HasSubstr("ends at sequence 3, but there "
                                            "are 2"));
  EXPECT_THAT(Refusal(Bytes(kExample), 6),
              HasSubstr("lists 4 tokens of 2 bytes, 8 in all, but its .bin has "
                        "6 bytes"));
}

TEST(IndexedFormatTest, NoBytesAtAllCrashIt) {
  for (uint64_t round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes = Bytes(kExample);
    for (uint64_t change = 0; change <= round % 4; ++change) {
      const uint64_t random = ckpt::Philox64(1, change, round);
      bytes[random % bytes.size()] = static_cast<std::byte>(random >> 32);
    }
    const auto index = DecodeIndex(bytes, 8, "a.idx");
    if (!index.ok()) continue;
    EXPECT_EQ(index->tokens * TokenBytes(index->type), 8);
  }
}

}  // namespace
}  // namespace holdfast::trainer
