// What a safetensors header may say, and with which words it is refused.

#include "tools/convert/safetensors.h"

#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<SafetensorsHeader> Decode(const std::string& json,
                                         uint64_t data_bytes) {
  return DecodeSafetensorsHeader(std::as_bytes(std::span(json)),
                                 8 + json.size() + data_bytes);
}

std::string Refusal(const std::string& json, uint64_t data_bytes) {
  const auto header = Decode(json, data_bytes);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(header.status().message());
}

std::string One(const std::string& name, const std::string& dtype,
                const std::string& shape, const std::string& offsets) {
  return absl::StrFormat(R"("%s":{"dtype":"%s","shape":%s,"data_offsets":%s})",
                         name, dtype, shape, offsets);
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string json = "{" + One("late", "BF16", "[2,3]", "[4,16]") + "," +
                           One("early", "F32", "[]", "[0,4]") +
                           R"(,"__metadata__":{"format":"pt"}}   )";
  const auto header = Decode(json, 16);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "early");
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[1].name, "late");
  EXPECT_EQ(header->tensors[1].offset, header->data_begin + 4);
  EXPECT_EQ(header->tensors[1].bytes, 12u);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, RefusesNamesAndKeysThatAreThereTwice) {
  const std::string w = One("w", "U8", "[1]", "[0,1]");
  EXPECT_THAT(Refusal("{" + w + "," + w + "}", 1),
              HasSubstr("'w' is there twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
              HasSubstr("metadata 'a' is there twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("'__metadata__' is there twice"));
  EXPECT_THAT(Refusal(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],)"
                      R"("data_offsets":[0,1]}})",
                      1),
              HasSubstr("says its 'dtype' twice"));
}

TEST(SafetensorsTest, RefusesOverlapsHolesAndBytesOfNobody) {
  const std::string a = One("a", "U8", "[4]", "[0,4]");
  EXPECT_THAT(Refusal("{" + a + "," + One("b", "U8", "[4]", "[3,7]") + "}", 7),
              HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(Refusal("{" + a + "," + One("b", "U8", "[4]", "[0,4]") + "}", 4),
              HasSubstr("overlap"));
  EXPECT_THAT(Refusal("{" + a + "," + One("b", "U8", "[4]", "[5,9]") + "}", 9),
              HasSubstr("1 bytes before tensor 'b' belong to none"));
  EXPECT_THAT(Refusal("{" + a + "}", 6),
              HasSubstr("last 2 bytes belong to no tensor"));
}

TEST(SafetensorsTest, RefusesOffsetsOutsideTheFileAndSizesThatDoNotFit) {
  EXPECT_THAT(Refusal("{" + One("a", "U8", "[9]", "[0,9]") + "}", 8),
              HasSubstr("bytes 0 to 9 of 8 data bytes"));
  EXPECT_THAT(Refusal("{" + One("a", "U8", "[1]", "[5,4]") + "}", 8),
              HasSubstr("bytes 5 to 4"));
  EXPECT_THAT(Refusal("{" + One("a", "F32", "[3]", "[0,8]") + "}", 8),
              HasSubstr("has 8 bytes, its type and shape need 12"));
  EXPECT_THAT(
      Refusal(
          "{" + One("a", "F64", "[4294967296,4294967296,4294967296]", "[0,8]") +
              "}",
          8),
      HasSubstr("more bytes than 64 bits count"));
  EXPECT_THAT(
      Refusal("{" + One("a", "U8", "[0,18446744073709551615]", "[0,0]") + "}",
              0),
      HasSubstr("a huge dimension"));
  EXPECT_THAT(
      Refusal("{" + One("a", "U8", "[18446744073709551616]", "[0,8]") + "}", 8),
      HasSubstr("no 64-bit count"));
}

TEST(SafetensorsTest, RefusesWhatIsNotOfTheGrammar) {
  EXPECT_THAT(Refusal("[]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(Refusal("{} {}", 0), HasSubstr("no JSON at byte"));
  EXPECT_THAT(Refusal(R"({"a":1})", 0),
              HasSubstr("a number where it does not"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8"}})", 0),
              HasSubstr("lacks its dtype, shape or data_offsets"));
  EXPECT_THAT(Refusal(R"({"a":{"rank":1}})", 0),
              HasSubstr("unknown key 'rank'"));
  EXPECT_THAT(Refusal("{" + One("a", "F4", "[1]", "[0,1]") + "}", 1),
              HasSubstr("unknown type 'F4'"));
  EXPECT_THAT(Refusal("{" + One("a", "U8", "[-1]", "[0,1]") + "}", 1),
              HasSubstr("a negative number"));
  EXPECT_THAT(Refusal("{" + One("a", "U8", "[1]", "[0,1,2]") + "}", 1),
              HasSubstr("a number where"));
  EXPECT_THAT(Refusal("{" + One("a", "U8", "[1]", "[0]") + "}", 1),
              HasSubstr("less than two offsets"));
  EXPECT_THAT(
      Refusal(
          "{" + One("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") +
              "}",
          1),
      HasSubstr("more than 16 dimensions"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"a":1}})", 0),
              HasSubstr("in '__metadata__'"));
  EXPECT_THAT(Refusal("{\"\xff\":{}}", 0), HasSubstr("no JSON at byte"));
}

TEST(SafetensorsTest, BoundsTheHeaderBeforeItIsRead) {
  const auto prefix = [](uint64_t bytes, uint64_t file_bytes) {
    std::byte raw[8];
    for (int i = 0; i < 8; ++i) raw[i] = std::byte(bytes >> (8 * i) & 0xff);
    return DecodeSafetensorsPrefix(raw, file_bytes);
  };
  EXPECT_EQ(*prefix(2, 10), 2u);
  EXPECT_THAT(prefix(3, 10).status().message(),
              HasSubstr("claims 3 bytes in a file of 10"));
  EXPECT_THAT(prefix(100'000'001, UINT64_MAX).status().message(),
              HasSubstr("at most 100000000 are accepted"));
  EXPECT_FALSE(prefix(UINT64_MAX, UINT64_MAX).ok());
  EXPECT_FALSE(prefix(0, 4).ok());
}

// The bytes that we write are pinned: readers of others depend on them.
TEST(SafetensorsTest, WritesThePrefixTheJsonAndSpacesToEightBytes) {
  SafeTensor tensor;
  tensor.name = "w";
  tensor.dtype = "F32";
  tensor.shape = {2, 3};
  tensor.bytes = 24;
  const std::vector<std::byte> bytes =
      EncodeSafetensorsHeader({&tensor, 1}, {{"format", "pt"}});
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32",)"
      R"("shape":[2,3],"data_offsets":[0,24]}})";
  ASSERT_EQ(bytes.size() % 8, 0u);
  const std::string text(reinterpret_cast<const char*>(bytes.data()) + 8,
                         bytes.size() - 8);
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_EQ(text.find_first_not_of(' ', expected.size()), std::string::npos);
  EXPECT_EQ(std::to_integer<size_t>(bytes[0]), text.size());
}

}  // namespace
}  // namespace holdfast::tools
