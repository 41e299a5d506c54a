// Text to tokens: documents, masked lines, and the same result however the
// bytes fall into pieces.

#include "trainer/data/text_import.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/trainer/data/token_files.h"
#include "trainer/data/byte_tokenizer.h"
#include "trainer/data/token_set.h"
#include "trainer/data/unigram.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;

// "<hi>" for <bos> h i <eos>; tokens that do not count in capitals.
std::string Shown(const std::string& prefix) {
  const auto set = TokenSet::Open(prefix);
  EXPECT_TRUE(set.ok()) << set.status();
  std::vector<int32_t> tokens(set->tokens());
  std::vector<uint8_t> counts(set->tokens());
  set->Read(0, tokens);
  set->ReadMask(0, counts);
  std::string shown;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const char c = tokens[i] == kByteBos   ? '<'
                   : tokens[i] == kByteEos ? '>'
                                           : static_cast<char>(tokens[i]);
    shown += counts[i] ? c : static_cast<char>(std::toupper(c));
  }
  return shown;
}

TEST(TextImportTest, EachFileIsADocument) {
  TempFolder folder;
  WriteFile(folder / "1", "ab\n\ncd");
  WriteFile(folder / "2", "");
  WriteFile(folder / "3", std::string("\xff\0\n", 3));
  const auto result =
      ImportText({.inputs = {folder / "1", folder / "2", folder / "3"},
                  .out_prefix = folder / "out"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Shown(folder / "out"), std::string("<ab\n\ncd><\xff\0\n>", 13));
  EXPECT_EQ(result->documents, 2);
  EXPECT_EQ(result->bytes, 9);
  EXPECT_EQ(result->tokens, 13);
  EXPECT_EQ(result->counting, 13);
}

TEST(TextImportTest, BlankLinesMayEndDocuments) {
  TempFolder folder;
  WriteFile(folder / "1", "\n\na\nb\n\r\n\nc\r\n\r\n");
  WriteFile(folder / "2", "d");
  const auto result = ImportText({.inputs = {folder / "1", folder / "2"},
                                  .out_prefix = folder / "out",
                                  .split = DocumentSplit::kBlankLine});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Shown(folder / "out"), "<a\nb\n><c\r\n><d>");
  EXPECT_EQ(result->documents, 3);
}

TEST(TextImportTest, LinesThatStartWithAWordDoNotCount) {
  TempFolder folder;
  WriteFile(folder / "1", "user: q\nsay: a\nuse\nuser:\n\nuser: x");
  const auto result = ImportText({.inputs = {folder / "1"},
                                  .out_prefix = folder / "out",
                                  .mask_line_prefix = "user:"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Shown(folder / "out"), "<USER: Q\nsay: a\nuse\nUSER:\n\nUSER: X>");
  // 33 bytes, <bos> and <eos>, less 8 + 6 + 7 masked ones (newlines included).
  EXPECT_EQ(result->tokens, 35);
  EXPECT_EQ(result->counting, 35 - 8 - 6 - 7);
}

TEST(TextImportTest, ALongTextComesThroughWhole) {
  TempFolder folder;
  std::string text;
  // Lines of 0 to 99 bytes over more than two pieces of 1 MiB.
  for (int line = 0; text.size() < (5 << 19); ++line) {
    text += std::string(line % 100, static_cast<char>('a' + line % 26)) + "\n";
  }
  WriteFile(folder / "1", text);
  const auto result = ImportText({.inputs = {folder / "1"},
                                  .out_prefix = folder / "out",
                                  .mask_line_prefix = "zz"});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto set = TokenSet::Open(folder / "out");
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->tokens(), text.size() + 2);
  std::vector<int32_t> tokens(text.size());
  std::vector<uint8_t> counts(text.size());
  set->Read(1, tokens);
  set->ReadMask(1, counts);
  bool line_counts = true;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 0 || text[i - 1] == '\n') {
      line_counts = text.compare(i, 2, "zz") != 0;
    }
    ASSERT_EQ(tokens[i], text[i]) << i;
    ASSERT_EQ(counts[i], line_counts) << i;
  }
}

TEST(TextImportTest, RefusesWhatMakesNoSet) {
  TempFolder folder;
  WriteFile(folder / "empty", "");
  const auto refusal = [&](std::vector<std::string> inputs) {
    const auto result =
        ImportText({.inputs = std::move(inputs), .out_prefix = folder / "out"});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(refusal({}), HasSubstr("no input files"));
  EXPECT_THAT(refusal({folder / "empty"}), HasSubstr("files are empty"));
  EXPECT_THAT(refusal({folder / "none"}), HasSubstr("none: No such file"));
  EXPECT_THAT(refusal({folder.path()}), HasSubstr("not a regular file"));
}

TEST(TextImportTest, EntropyIsThatOfTheTokensThatCount) {
  TempFolder folder;
  WriteFile(folder / "1", "aabb");
  const auto result =
      ImportText({.inputs = {folder / "1"}, .out_prefix = folder / "out"});
  ASSERT_TRUE(result.ok());
  // Six tokens: a a b b <bos> <eos>.
  const double expected =
      2 * (2 / 6.0) * std::log(3.0) + 2 * (1 / 6.0) * std::log(6.0);
  EXPECT_NEAR(result->unigram_nats, expected, 1e-12);
}

TEST(UnigramTest, IsTheLogarithmOfTheVocabularyWhenAllAreEquallyFrequent) {
  const std::vector<uint64_t> counts(258, 7);
  EXPECT_NEAR(UnigramEntropy<uint64_t>(counts), std::log(258.0), 1e-12);
  EXPECT_EQ(UnigramEntropy<uint64_t>(std::vector<uint64_t>{0, 5, 0}), 0.0);
  EXPECT_EQ(UnigramEntropy<uint64_t>(std::vector<uint64_t>{0, 0}), 0.0);
}

}  // namespace
}  // namespace holdfast::trainer
