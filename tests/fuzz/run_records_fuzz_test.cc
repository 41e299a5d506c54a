// The fuzz target of the run's records as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "tests/fuzz/run_records_properties.h"

namespace holdfast::ckpt {
namespace {

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = {"step-000000120.i0003.a01.o0004",
                                     "step-000000120.i0003.a01"};
  for (const auto& entry : std::filesystem::directory_iterator(
           HOLDFAST_SOURCE_DIR "/tests/fuzz/corpus/run_records")) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in),
                        std::istreambuf_iterator<char>());
  }
  std::sort(corpus.begin(), corpus.end());
  return corpus;
}

TEST(RunRecordsFuzzTest, TheCorpusIsAccepted) {
  for (const std::string& text : Corpus()) {
    EXPECT_GE(CheckRecordBytes(std::as_bytes(std::span(text))), 1) << text;
  }
}

TEST(RunRecordsFuzzTest, MutationsAreRefusedOrHaveOneSpelling) {
  const std::vector<std::string> corpus = Corpus();
  int accepted = 0;
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t below) {
      return Philox64(seed, 1, draws++) % below;
    };
    std::string text = corpus[draw(corpus.size())];
    for (uint64_t changes = 1 + draw(3); changes > 0 && !text.empty();
         --changes) {
      const size_t at = draw(text.size());
      switch (draw(5)) {
        case 0:
          text[at] = static_cast<char>(draw(256));
          break;
        case 1:
          text.insert(at, 1, "0 \n%.f"[draw(6)]);
          break;
        case 2:
          text.erase(at, 1 + draw(20));
          break;
        case 3:
          text[at] = static_cast<char>('0' + draw(10));
          break;
        default:
          text.insert(draw(text.size()), text.substr(at, draw(80)));
      }
    }
    accepted += CheckRecordBytes(std::as_bytes(std::span(text)));
  }
  // Unless some got through, the mutations never reached the inside.
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace holdfast::ckpt
