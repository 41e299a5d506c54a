// The fuzz target of safetensors headers as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "tests/fuzz/safetensors_properties.h"

namespace holdfast::tools {
namespace {

std::map<std::string, std::string> Corpus() {
  std::map<std::string, std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(
           HOLDFAST_SOURCE_DIR "/tests/fuzz/corpus/safetensors")) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return corpus;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsFuzzTest, OfTheCorpusWhatIsSoundIsAcceptedAndNothingElse) {
  int accepted = 0;
  for (const auto& [name, text] : Corpus()) {
    const bool sound = name == "one" || name == "several" ||
                       name == "empty_tensors" || name == "nothing" ||
                       name == "out_of_order" || name == "escapes";
    EXPECT_EQ(CheckSafetensorsFile(BytesOf(text)), sound ? 1 : 0) << name;
    accepted += sound;
  }
  EXPECT_EQ(accepted, 6);
}

TEST(SafetensorsFuzzTest, MutationsAreRefusedOrComeBackTheSame) {
  std::vector<std::string> corpus;
  for (const auto& [name, text] : Corpus()) corpus.push_back(text);
  int accepted = 0;
  constexpr int kMutations = 20'000;
  for (uint64_t seed = 1; seed <= kMutations; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t below) {
      return ckpt::Philox64(seed, 2, draws++) % below;
    };
    std::string text = corpus[draw(corpus.size())];
    for (uint64_t changes = 1 + draw(3); changes > 0; --changes) {
      const size_t at = draw(text.size());
      switch (draw(5)) {
        case 0:
          text[at] = static_cast<char>(draw(256));
          break;
        case 1:
          text.insert(at, 1, "0 ,:\"{}[]-.e"[draw(12)]);
          break;
        case 2:
          text.erase(at, 1 + draw(20));
          if (text.empty()) text = "{";
          break;
        case 3:
          text[at] = static_cast<char>('0' + draw(10));
          break;
        default: {
          const std::string& other = corpus[draw(corpus.size())];
          const size_t from = draw(other.size());
          text.insert(at, other.substr(from, draw(60)));
        }
      }
    }
    accepted += CheckSafetensorsBytes(BytesOf(text)) > 0;
  }
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

}  // namespace
}  // namespace holdfast::tools
