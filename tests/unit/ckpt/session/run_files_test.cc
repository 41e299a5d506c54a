// Records and names of a run directory.

#include "ckpt/session/run_files.h"

#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

RunId SomeRun() {
  RunId id{};
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(i * 17);
  return id;
}

// As early programs made them.
OwnerClaim EarlyClaim() {
  return {SomeRun(), 3, "node 17%\n", 4711, 1'700'000'000'123, 5120};
}

OwnerClaim SomeClaim() {
  OwnerClaim claim = EarlyClaim();
  claim.mark = {"0b5c72a9-31f4-4d0e-9c1b-7a6d52e8f013",
                "pid:[4026531836] time:[4026531834]", 48213};
  return claim;
}

OwnerSeal SomeSeal() {
  OwnerSeal seal;
  seal.run_id = SomeRun();
  seal.incarnation = 4;
  seal.head = CheckpointId{200, 3, 2};
  seal.line = {{{100, 2, 1}, 1, 0xdeadbeef}, {{200, 3, 2}, 7, 0}};
  seal.superseded = {{{{300, 3, 3}, 8, 1}, "rewind"},
                     {{{400, 3, 4}, 9, 2}, "damaged: a\nb 100%"},
                     {{{500, 3, 5}, 9, 2}, ""}};
  return seal;
}

TEST(RunFilesTest, RecordsDecodeToWhatWasEncoded) {
  EXPECT_EQ(*DecodeClaim(EncodeClaim(SomeClaim())), SomeClaim());
  EXPECT_EQ(*DecodeClaim(EncodeClaim(EarlyClaim())), EarlyClaim());
  EXPECT_EQ(*DecodeSeal(EncodeSeal(SomeSeal())), SomeSeal());
  EXPECT_EQ(*DecodeRunId(EncodeRunId(SomeRun())), SomeRun());
  OwnerSeal fresh;
  fresh.incarnation = 1;
  EXPECT_EQ(*DecodeSeal(EncodeSeal(fresh)), fresh);
}

TEST(RunFilesTest, AClaimIsLinesThatAPersonCanRead) {
  const auto bytes = EncodeClaim(SomeClaim());
  const std::string text(reinterpret_cast<const char*>(bytes.data()),
                         bytes.size());
  EXPECT_THAT(text, HasSubstr("holdfast owner claim 1\n"
                              "run_id 00112233445566778899aabbccddeeff\n"
                              "incarnation 3\n"
                              "host node 17%25%0a\n"
                              "pid 4711\n"));
}

// The text between "```text NAME" and "```" in ckpt/FORMAT.md.
std::string Documented(const std::string& name) {
  std::ifstream in(HOLDFAST_SOURCE_DIR "/ckpt/FORMAT.md");
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "```text " + name) {
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      text += line + "\n";
    }
  }
  return text;
}

std::string TextOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(RunFilesTest, RecordsAreWhatTheFormatDocumentShows) {
  EXPECT_EQ(TextOf(EncodeRunId(SomeRun())), Documented("run.id"));
  OwnerClaim claim{SomeRun(), 4, "node17", 4711, 1'700'000'000'123, 8};
  EXPECT_EQ(TextOf(EncodeClaim(claim)), Documented("early claim"));
  claim.mark = SomeClaim().mark;
  EXPECT_EQ(TextOf(EncodeClaim(claim)), Documented("claim"));
  OwnerSeal seal;
  seal.run_id = SomeRun();
  seal.incarnation = 4;
  seal.head = CheckpointId{200, 3, 2};
  seal.line = {{{100, 2, 1}, 1, 0x5d3a0f11}, {{200, 3, 2}, 2, 0x8e01c7b4}};
  seal.superseded = {{{{300, 3, 3}, 3, 0x11f0aa52},
                      "damaged: shard-00003.hf, offset 4096: crc32c is "
                      "9f3a01c7, the index records 1b44e20d"}};
  EXPECT_EQ(TextOf(EncodeSeal(seal)), Documented("seal"));
}

TEST(RunFilesTest, AMarkIsWholeOrNotThere) {
  OwnerClaim claim = SomeClaim();
  const std::string text = TextOf(EncodeClaim(claim));
  for (const char* key : {"boot ", "namespaces ", "start_ticks "}) {
    const size_t from = text.find(std::string("\n") + key) + 1;
    std::string cut = text.substr(0, text.rfind("crc32c "));
    cut.erase(from, text.find('\n', from) + 1 - from);
    cut +=
        absl::StrFormat("crc32c %08x\n", Crc32c(std::as_bytes(std::span(cut))));
    EXPECT_EQ(DecodeClaim(std::as_bytes(std::span(cut))).status().code(),
              absl::StatusCode::kDataLoss)
        << cut;
  }
}

TEST(RunFilesTest, OneFlippedBitAnywhereIsFound) {
  const auto seal = EncodeSeal(SomeSeal());
  for (size_t byte = 0; byte < seal.size(); ++byte) {
    auto damaged = seal;
    damaged[byte] ^= std::byte{4};
    EXPECT_EQ(DecodeSeal(damaged).status().code(), absl::StatusCode::kDataLoss)
        << byte;
  }
}

TEST(RunFilesTest, EveryShorterSealIsRefused) {
  const auto seal = EncodeSeal(SomeSeal());
  for (size_t size = 0; size < seal.size(); ++size) {
    EXPECT_EQ(DecodeSeal(std::span(seal).first(size)).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
}

TEST(RunFilesTest, AHeadThatIsNotTheEndOfTheLineIsRefused) {
  OwnerSeal seal = SomeSeal();
  seal.head = CheckpointId{100, 2, 1};
  EXPECT_THAT(DecodeSeal(EncodeSeal(seal)).status().message(),
              HasSubstr("its head is not the last of its line"));
}

TEST(RunFilesTest, NamesParseBackAndNothingElseDoes) {
  const CheckpointId id{120, 3, 1};
  EXPECT_EQ(AttemptDir(id), "checkpoints/step-000000120.i0003.a01");
  EXPECT_EQ(AdoptedDir(id, 4), "checkpoints/step-000000120.i0003.a01.o0004");
  const auto plain = ParseCheckpointDir("step-000000120.i0003.a01");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->id, id);
  EXPECT_FALSE(plain->owner);
  EXPECT_EQ(ParseCheckpointDir("step-000000120.i0003.a01.o0004")->owner, 4);
  // Wider numbers than the padding.
  const CheckpointId wide{12345678901, 10001, 100};
  EXPECT_EQ(ParseCheckpointId(ToString(wide)), wide);
  for (const char* other :
       {"step-120.i0003.a01", "step-000000120.i3.a01", "step-000000120.i0003",
        "step-000000120.i0003.a01.o4", "step-000000120.i0003.a01.", "run.id",
        "step--00000120.i0003.a01", "step-000000120.i0003.a01.o0004.x", "",
        "step-000000120.a01.i0003", "step-000000120.i0003.a99999999999"}) {
    EXPECT_FALSE(ParseCheckpointDir(other)) << other;
  }
}

TEST(RunFilesTest, OwnerFilesParseBackAndNothingElseDoes) {
  EXPECT_EQ(ClaimName(3), "owners/i0003.claim");
  EXPECT_EQ(ParseOwnerFile("i0003.claim")->incarnation, 3);
  EXPECT_FALSE(ParseOwnerFile("i0003.claim")->is_seal);
  EXPECT_TRUE(ParseOwnerFile("i12345.seal")->is_seal);
  for (const char* other : {"i3.claim", "i0000.claim", "i0003", "i0003.seal~",
                            "0003.seal", "", "i.seal", "i0003.claim.seal"}) {
    EXPECT_FALSE(ParseOwnerFile(other)) << other;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
