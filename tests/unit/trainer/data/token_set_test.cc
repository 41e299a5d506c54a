// Token sets on disk: written whole or not at all, read back exactly, refused
// with the file's name when something is wrong with them.

#include "trainer/data/token_set.h"

#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/trainer/data/token_files.h"
#include "trainer/data/mask_format.h"

namespace holdfast::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> FilesIn(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  return names;
}

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::vector<int32_t> ReadAll(const TokenSet& set) {
  std::vector<int32_t> tokens(set.tokens());
  set.Read(0, tokens);
  return tokens;
}

TEST(TokenSetTest, GivesBackWhatWasWritten) {
  TempFolder folder;
  WriteTokens(folder / "a", 300, {{7, 8, 299}, {}, {0}});
  EXPECT_THAT(FilesIn(folder), UnorderedElementsAre("a.bin", "a.idx"));
  EXPECT_EQ(ReadFile(folder / "a.bin"), std::string("\7\0\x8\0\x2b\1\0\0", 8));
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->tokens(), 4);
  EXPECT_EQ(set->documents(), 2) << "the empty one is dropped";
  EXPECT_FALSE(set->masked());
  EXPECT_THAT(ReadAll(*set), ElementsAre(7, 8, 299, 0));
  EXPECT_EQ(set->Counting(1, 3), 3);
}

TEST(TokenSetTest, LargeVocabulariesTakeFourBytes) {
  TempFolder folder;
  WriteTokens(folder / "a", 128256, {{128255, 1}});
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->type(), TokenType::kI32);
  EXPECT_THAT(ReadAll(*set), ElementsAre(128255, 1));
}

TEST(TokenSetTest, MaskHasTheHeadersExampleBytes) {
  TempFolder folder;
  WriteTokens(folder / "a", 10, {{1, 2, 3, 4}}, {false, false, true, true});
  EXPECT_EQ(ReadFile(folder / "a.mask"),
            std::string("HFMASK1\0\4\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\x0c", 25));
}

TEST(TokenSetTest, MaskCountsFromAnyTokenToAny) {
  TempFolder folder;
  std::vector<bool> counts;
  for (int i = 0; i < 300; ++i) counts.push_back(i % 3 == 0 || i % 7 == 0);
  WriteTokens(folder / "a", 300, {Counting(300)}, counts);
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_TRUE(set->masked());
  std::vector<uint8_t> mask(300);
  set->ReadMask(0, mask);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(mask[i], counts[i]) << i;
  for (int first = 0; first < 300; first += 13) {
    uint64_t expected = 0;
    for (int end = first; end < 300; ++end) {
      ASSERT_EQ(set->Counting(first, end - first), expected)
          << first << " to " << end;
      expected += counts[end];
    }
  }
}

TEST(TokenSetTest, LongDocumentsBecomeSeveralSequencesOfOneDocument) {
  TempFolder folder;
  auto writer = TokenWriter::Create(folder / "a",
                                    {.vocab = 300, .sequence_tokens_max = 4});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(Counting(10), true).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->documents(), 1);
  EXPECT_EQ(ReadAll(*set), Counting(10));
}

TEST(TokenSetTest, UnfinishedSetsLeaveNothing) {
  TempFolder folder;
  {
    auto writer = TokenWriter::Create(folder / "a", {.vocab = 9});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(Counting(5), true).ok());
  }
  EXPECT_THAT(FilesIn(folder), IsEmpty());
}

TEST(TokenSetTest, SetsAreReplacedOnlyWhenAsked) {
  TempFolder folder;
  WriteTokens(folder / "a", 10, {{1, 2}}, {true, false});
  EXPECT_THAT(
      Refusal(TokenWriter::Create(folder / "a", {.vocab = 10}).status()),
      HasSubstr("a.idx exists"));
  auto writer =
      TokenWriter::Create(folder / "a", {.vocab = 10, .replace = true});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(Counting(3), true).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT(FilesIn(folder), UnorderedElementsAre("a.bin", "a.idx"))
      << "the old set's mask went with it";
  EXPECT_THAT(ReadAll(*TokenSet::Open(folder / "a")), ElementsAre(0, 1, 2));
}

TEST(TokenSetTest, UnwritablePlacesAreRefused) {
  EXPECT_THAT(
      Refusal(TokenWriter::Create("/nonexistent/a", {.vocab = 10}).status()),
      AllOf(HasSubstr("/nonexistent/a.bin"), HasSubstr("No such")));
}

TEST(TokenSetTest, MissingAndTruncatedFilesAreNamed) {
  TempFolder folder;
  EXPECT_THAT(Refusal(TokenSet::Open(folder / "none").status()),
              AllOf(HasSubstr("opening token set"), HasSubstr("none.idx"),
                    HasSubstr("No such file")));
  WriteTokens(folder / "a", 10, {{1, 2, 3, 4}});
  WriteFile(folder / "a.bin", ReadFile(folder / "a.bin").substr(0, 5));
  EXPECT_THAT(Refusal(TokenSet::Open(folder / "a").status()),
              AllOf(HasSubstr("a.idx: lists 4 tokens of 2 bytes, 8 in all"),
                    HasSubstr("5 bytes")));
  std::filesystem::remove(folder / "a.bin");
  EXPECT_THAT(Refusal(TokenSet::Open(folder / "a").status()),
              HasSubstr("a.bin: No such file"));
  std::filesystem::create_directory(folder / "a.bin");
  EXPECT_THAT(Refusal(TokenSet::Open(folder / "a").status()),
              HasSubstr("a.bin: not a regular file"));
}

TEST(TokenSetTest, DamagedMasksAreRefused) {
  TempFolder folder;
  const auto refusal = [&](const std::string& mask) {
    WriteFile(folder / "a.mask", mask);
    return Refusal(TokenSet::Open(folder / "a").status());
  };
  WriteTokens(folder / "a", 10, {{1, 2, 3, 4}}, {false, true, true, false});
  const std::string good = ReadFile(folder / "a.mask");
  EXPECT_THAT(refusal("HFMASK"), HasSubstr("this is no loss mask"));
  EXPECT_THAT(refusal(good.substr(0, 24)), HasSubstr("24 bytes, expected 25"));
  std::string other = good;
  other[8] = 5;
  EXPECT_THAT(refusal(other), HasSubstr("masks 5 tokens, but the set has 4"));
  other = good;
  other[24] = '\x16';
  EXPECT_THAT(refusal(other), HasSubstr("past its last token, 3"));
  other[24] = '\x7';
  EXPECT_THAT(refusal(other),
              HasSubstr("3 bits are set, its header records 2"));
}

TEST(TokenSetTest, TokensBeyondTheVocabularyAreFoundWithTheirOffset) {
  TempFolder folder;
  std::vector<int32_t> tokens(100'000, 5);
  tokens[70'001] = 258;
  WriteTokens(folder / "a", 300, {tokens});
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok());
  EXPECT_TRUE(set->CheckTokens(259).ok());
  EXPECT_THAT(Refusal(set->CheckTokens(258)),
              HasSubstr("a.bin: offset 140002 (token 70001 of 100000): id 258 "
                        "is outside the model's vocabulary, 0 to 257"));
}

TEST(TokenSetTest, NegativeTokensOfForeignSetsAreFound) {
  TempFolder folder;
  const std::vector<int32_t> lengths = {2};
  const std::vector<int64_t> documents = {0, 1};
  const auto index = EncodeIndex(TokenType::kI64, lengths, documents);
  WriteFile(folder / "a.idx",
            {reinterpret_cast<const char*>(index.data()), index.size()});
  WriteFile(folder / "a.bin", std::string(8, '\1').substr(0, 1) +
                                  std::string(7, '\0') +
                                  std::string(8, '\xff'));
  const auto set = TokenSet::Open(folder / "a");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(Refusal(set->CheckTokens(258)), HasSubstr("offset 8 (token 1"));
}

TEST(TokenSetTest, FingerprintChangesWithContentAndNotWithTheName) {
  TempFolder folder;
  const auto of = [&](const char* name) {
    const auto set = TokenSet::Open(folder / name);
    EXPECT_TRUE(set.ok()) << set.status();
    return set->Fingerprint();
  };
  WriteTokens(folder / "a", 300, {Counting(200)});
  WriteTokens(folder / "same", 300, {Counting(200)});
  EXPECT_EQ(of("a"), of("same"));
  std::vector<int32_t> tokens = Counting(200);
  tokens[100] = 0;
  WriteTokens(folder / "token", 300, {tokens});
  WriteTokens(folder / "longer", 300, {Counting(201)});
  WriteTokens(folder / "cut", 300, {Counting(100), Counting(100, 100)});
  WriteTokens(folder / "mask", 300, {Counting(200)},
              std::vector<bool>(200, true));
  for (const char* other : {"token", "longer", "cut", "mask"}) {
    EXPECT_NE(of("a"), of(other)) << other;
  }
}

TEST(TokenSetTest, FingerprintOfALargeSetLooksAtItsFirstAndLastBytes) {
  TempFolder folder;
  std::set<uint64_t> prints;
  for (const size_t changed : {0, 1, 399'998, 399'999}) {
    std::vector<int32_t> tokens(400'000, 1);
    tokens[changed] = 2;
    const std::string prefix = folder / std::to_string(changed);
    WriteTokens(prefix, 300, {tokens});
    prints.insert(TokenSet::Open(prefix)->Fingerprint());
  }
  EXPECT_EQ(prints.size(), 4);
}

}  // namespace
}  // namespace holdfast::trainer
