// The fuzz targets of trainer/ as ordinary tests: each file of a corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/config_properties.h"
#include "tests/fuzz/idx_properties.h"
#include "tests/support/fuzz_corpus.h"

namespace holdfast::trainer {
namespace {

template <typename Check>
void TryAll(const std::string& name, const std::vector<std::string>& words,
            int mutations, Check check) {
  const std::vector<std::string> corpus = tests::Corpus(name);
  int accepted = 0;
  for (const std::string& text : corpus) accepted += check(text) > 0;
  EXPECT_GE(accepted, 3) << "of the corpus itself";
  EXPECT_LT(accepted, static_cast<int>(corpus.size()));
  accepted = 0;
  for (int i = 0; i < mutations; ++i) {
    accepted += check(tests::Mutate(corpus, words, i)) > 0;
  }
  EXPECT_GT(accepted, mutations / 200);
  EXPECT_LT(accepted, mutations);
}

TEST(TrainerFuzzTest, AnyBytesAreRefusedAsAnIndexOrEncodeTheSame) {
  TryAll("idx",
         {std::string(1, '\0'), "\x01", "\xff", "\x7f", std::string(8, '\0')},
         /*mutations=*/8000, [](const std::string& text) {
           return CheckIdxBytes(std::as_bytes(std::span(text)));
         });
}

TEST(TrainerFuzzTest, AnyTextIsRefusedAsAConfigurationOrReadBackTheSame) {
  TryAll("config", {"[",          "]",       "=",
                    "\"",         "'",       "\"\"\"",
                    "{",          "}",       ",",
                    ".",          "#",       "\n",
                    "-",          "1e309",   "nan",
                    "-inf",       "0x",      "9223372036854775808",
                    "1979-05-27", "true",    "\xc3\xa4",
                    "~7",         "\\u0000", "[[",
                    "--set "},
         /*mutations=*/4000, CheckConfigText);
}

}  // namespace
}  // namespace holdfast::trainer
