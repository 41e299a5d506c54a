// The fuzz target of safetensors headers as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/safetensors_properties.h"
#include "tests/support/fuzz_corpus.h"

namespace holdfast::tools {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsFuzzTest, OfTheCorpusWhatIsSoundIsAcceptedAndNothingElse) {
  int accepted = 0;
  for (const auto& [name, text] : tests::NamedCorpus("safetensors")) {
    const bool sound = name == "one" || name == "several" ||
                       name == "empty_tensors" || name == "nothing" ||
                       name == "out_of_order" || name == "escapes";
    EXPECT_EQ(CheckSafetensorsFile(BytesOf(text)), sound ? 1 : 0) << name;
    accepted += sound;
  }
  EXPECT_EQ(accepted, 6);
}

TEST(SafetensorsFuzzTest, MutationsAreRefusedOrComeBackTheSame) {
  const std::vector<std::string> corpus = tests::Corpus("safetensors");
  const std::vector<std::string> words = {"0", "1", " ", ",", ":", "\"", "{",
                                          "}", "[", "]", "-", ".", "e"};
  int accepted = 0;
  constexpr int kMutations = 20'000;
  for (int seed = 1; seed <= kMutations; ++seed) {
    const std::string text = tests::Mutate(corpus, words, seed);
    accepted += CheckSafetensorsBytes(BytesOf(text)) > 0;
  }
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

}  // namespace
}  // namespace holdfast::tools
