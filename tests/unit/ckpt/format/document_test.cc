// ckpt/FORMAT.md against the code: every dump in the document is compared with
// what the encoders give, and every number of its examples is looked for.
//
// A dump is fenced as ```xxd NAME and is what `xxd -a` prints: "*" stands for
// lines of zeros.

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/format/mix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/format/sample_manifest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

std::string ReadDocument() {
  std::ifstream in(HOLDFAST_SOURCE_DIR "/ckpt/FORMAT.md");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// "00000010: 0300 0000 0100 0000 ...  text" to bytes. The text after two spaces
// is for people.
std::vector<std::byte> ParseLine(const std::string& line, size_t* address) {
  *address = std::strtoull(line.c_str(), nullptr, 16);
  std::vector<std::byte> bytes;
  const size_t begin = line.find(": ") + 2;
  std::string digits;
  for (const char c : line.substr(begin, line.find("  ", begin) - begin)) {
    if (c != ' ') digits += c;
  }
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        std::byte(std::strtoul(digits.substr(i, 2).c_str(), nullptr, 16)));
  }
  return bytes;
}

std::map<std::string, std::vector<std::byte>> Dumps() {
  std::map<std::string, std::vector<std::byte>> dumps;
  std::istringstream document(ReadDocument());
  std::vector<std::byte>* dump = nullptr;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("```xxd ", 0) == 0) {
      dump = &dumps[line.substr(7)];
    } else if (line == "```") {
      dump = nullptr;
    } else if (dump != nullptr && line != "*") {
      size_t address = 0;
      const std::vector<std::byte> bytes = ParseLine(line, &address);
      EXPECT_GE(address, dump->size()) << line;
      dump->resize(address);
      dump->insert(dump->end(), bytes.begin(), bytes.end());
    }
  }
  return dumps;
}

// As `xxd -a` would print it, for the message of a failure.
std::string Xxd(const std::vector<std::byte>& bytes) {
  std::string text;
  bool skipping = false;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const size_t size = std::min<size_t>(16, bytes.size() - at);
    bool zero = at != 0 && at + 16 < bytes.size();
    std::string hex, plain;
    for (size_t i = 0; i < 16; ++i) {
      if (i % 2 == 0) hex += ' ';
      if (i >= size) {
        hex += "  ";
        continue;
      }
      const int b = std::to_integer<int>(bytes[at + i]);
      zero = zero && b == 0;
      hex += absl::StrFormat("%02x", b);
      plain += b >= 32 && b < 127 ? static_cast<char>(b) : '.';
    }
    if (!zero) {
      text += absl::StrFormat("%08x:%s  %s\n", at, hex, plain);
    } else if (!skipping) {
      text += "*\n";
    }
    skipping = zero;
  }
  return text;
}

TEST(FormatDocumentTest, EveryDumpIsWhatTheEncodersGive) {
  const std::map<std::string, std::vector<std::byte>> expected = {
      {"header", EncodeShardHeader(SampleIdentity(0))},
      {"index", SampleIndex(0)},
      {"footer", SampleFooter(0)},
      {"manifest", EncodeManifest(SampleManifest())},
      {"coded frame", CodedFrame()},
      {"coded index", CodedIndex()},
      {"coded footer", CodedFooter()},
      {"coded manifest", EncodeManifest(CodedManifest())}};
  const auto dumps = Dumps();
  EXPECT_EQ(dumps.size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    const auto found = dumps.find(name);
    ASSERT_NE(found, dumps.end()) << name << " is:\n" << Xxd(bytes);
    EXPECT_TRUE(found->second == bytes) << name << " is:\n" << Xxd(bytes);
  }
}

TEST(FormatDocumentTest, TheDumpsDecodeToTheExample) {
  const auto dumps = Dumps();
  const auto manifest = DecodeManifest(dumps.at("manifest"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, SampleManifest());
  EXPECT_EQ(*DecodeShardHeader(dumps.at("header")), SampleIdentity(0));
  const auto footer = DecodeShardFooter(dumps.at("footer"));
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->index_offset, 12288u);
  EXPECT_EQ(footer->crc_index, Crc32c(dumps.at("index")));
  EXPECT_EQ(footer->crc_index, manifest->files[0].crc_index);
  EXPECT_EQ(DecodeShardIndex(dumps.at("index"), 2)->at(1).crc,
            Crc32c(SampleUnits(0)[1]));
}

TEST(FormatDocumentTest, TheCodedDumpsDecodeToTheExample) {
  const auto dumps = Dumps();
  const auto manifest = DecodeManifest(dumps.at("coded manifest"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, CodedManifest());
  const auto footer = DecodeShardFooter(dumps.at("coded footer"));
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->plain_bytes, manifest->files[0].plain_bytes);
  const auto units = DecodeCodedIndex(dumps.at("coded index"), 2);
  ASSERT_TRUE(units.ok()) << units.status();
  std::vector<std::byte> plain(units->at(0).bytes);
  ASSERT_EQ(dumps.at("coded frame").size(), units->at(0).bytes_stored);
  const absl::Status decoded =
      ZstdDecoder(plain.size())
          .Decode(dumps.at("coded frame"), units->at(0).planes, plain);
  ASSERT_TRUE(decoded.ok()) << decoded;
  EXPECT_EQ(plain, SampleOnesUnit());
}

TEST(FormatDocumentTest, TheDigestExampleIsWorkedOutRight) {
  const std::string document = ReadDocument();
  const Digest128 key = DigestBytes(std::string("bias\0master", 11));
  const uint64_t k_low = Mix64(key.low + kGolden64) | 1;
  const uint64_t k_high = Mix64(key.high + kGolden64) | 1;
  const auto says = [&](const std::string& name, uint64_t value) {
    EXPECT_THAT(document,
                HasSubstr(absl::StrFormat("%-9s = %016x", name, value)));
  };
  says("key.low", key.low);
  says("key.high", key.high);
  says("K.low(0)", k_low);
  says("K.high(0)", k_high);
  const uint64_t bits[] = {0x3f800000, 0x40000000, 0x40400000};
  Digest128 sum;
  for (uint64_t j = 0; j < 3; ++j) {
    const uint64_t p_low = (Mix64(j + 1) >> 32) | 1;
    const uint64_t p_high = (Mix64(j + 65) >> 32) | 1;
    EXPECT_THAT(document, HasSubstr(absl::StrFormat(
                              "P.low[%d]  = %08x   P.high[%d] = %08x", j, p_low,
                              j, p_high)));
    const uint64_t folded = bits[j] ^ bits[j] >> 16;
    EXPECT_THAT(document,
                HasSubstr(absl::StrFormat("F(%08x) = %08x", bits[j], folded)));
    sum.low += p_low * folded;
    sum.high += p_high * folded;
  }
  says("S.low(0)", sum.low);
  says("S.high(0)", sum.high);
  const Digest128 digest{k_low * sum.low, k_high * sum.high};
  EXPECT_EQ(digest, SampleManifest().item_digests[0]);
  EXPECT_THAT(document, HasSubstr("digest    = " + ToHex(digest)));
  EXPECT_THAT(document, HasSubstr("whole     = " +
                                  ToHex(LogicalDigest(SampleManifest()))));
}

TEST(FormatDocumentTest, TheChecksumExampleIsRight) {
  EXPECT_THAT(ReadDocument(),
              HasSubstr(absl::StrFormat(
                  "crc32c(\"123456789\") = %08x",
                  Crc32c(std::as_bytes(std::span("123456789", 9))))));
}

}  // namespace
}  // namespace holdfast::ckpt
