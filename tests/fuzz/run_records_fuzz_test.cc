// The fuzz target of the run's records as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/run_records_properties.h"
#include "tests/support/fuzz_corpus.h"

namespace holdfast::ckpt {
namespace {

// The files', and names of directories.
std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = tests::Corpus("run_records");
  corpus.push_back("step-000000120.i0003.a01.o0004");
  corpus.push_back("step-000000120.i0003.a01");
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
  const std::vector<std::string> words = {"0", "9", " ", "\n", "%", ".", "f"};
  for (int seed = 1; seed <= 20'000; ++seed) {
    const std::string text = tests::Mutate(corpus, words, seed);
    accepted += CheckRecordBytes(std::as_bytes(std::span(text)));
  }
  // Unless some got through, the mutations never reached the inside.
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace holdfast::ckpt
