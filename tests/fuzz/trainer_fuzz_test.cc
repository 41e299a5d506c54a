// The fuzz targets of trainer/ as ordinary tests: each file of a corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "tests/fuzz/config_properties.h"
#include "tests/fuzz/idx_properties.h"

namespace holdfast::trainer {
namespace {

std::vector<std::string> Corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           HOLDFAST_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in),
                        std::istreambuf_iterator<char>());
  }
  return corpus;
}

// A few changes, drawn by `seed`. `words` are what the text is made of.
std::string Mutate(const std::vector<std::string>& corpus,
                   const std::vector<std::string>& words, uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](uint64_t below) {
    return ckpt::Philox64(seed, 2, draws++) % std::max<uint64_t>(1, below);
  };
  std::string text = corpus[draw(corpus.size())];
  for (uint64_t changes = 1 + draw(3); changes > 0 && !text.empty();
       --changes) {
    const size_t at = draw(text.size());
    switch (draw(6)) {
      case 0:
        text[at] = static_cast<char>(draw(256));
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ 1 << draw(8));
        break;
      case 2:
        text.erase(at, 1 + draw(20));
        break;
      case 3:
        text.insert(at, words[draw(words.size())]);
        break;
      case 4:
        text.replace(at, 1, words[draw(words.size())]);
        break;
      default:
        text.insert(draw(text.size()), text.substr(at, draw(80)));
    }
  }
  return text;
}

template <typename Check>
void TryAll(const std::string& name, const std::vector<std::string>& words,
            int mutations, Check check) {
  const std::vector<std::string> corpus = Corpus(name);
  int accepted = 0;
  for (const std::string& text : corpus) accepted += check(text) > 0;
  EXPECT_GE(accepted, 3) << "of the corpus itself";
  EXPECT_LT(accepted, static_cast<int>(corpus.size()));
  accepted = 0;
  for (int i = 0; i < mutations; ++i) {
    accepted += check(Mutate(corpus, words, i)) > 0;
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
