// The fuzz target of torch's checkpoints as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ckpt/base/philox.h"
#include "gtest/gtest.h"
#include "tests/fuzz/dcp_properties.h"

namespace holdfast::tools {
namespace {

std::vector<std::string> Corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           HOLDFAST_SOURCE_DIR "/tests/fuzz/corpus/dcp")) {
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

TEST(DcpFuzzTest, WhatTorchWroteIsAccepted) {
  int accepted = 0;
  for (const std::string& bytes : Corpus()) accepted += CheckDcpBytes(bytes);
  EXPECT_GE(accepted, 5);
}

TEST(DcpFuzzTest, MutationsAreRefusedOrKeepWhatHolds) {
  const std::vector<std::string> corpus = Corpus();
  ASSERT_GE(corpus.size(), 5u);
  int accepted = 0;
  constexpr int kMutations = 12'000;
  for (uint64_t seed = 1; seed <= kMutations; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t below) {
      return ckpt::Philox64(seed, 3, draws++) % std::max<uint64_t>(below, 1);
    };
    std::string text = corpus[draw(corpus.size())];
    for (uint64_t changes = 1 + draw(3); changes > 0 && !text.empty();
         --changes) {
      const size_t at = draw(text.size());
      switch (draw(6)) {
        case 0:
          text[at] = static_cast<char>(draw(256));
          break;
        case 1: {  // An opcode of a pickle.
          constexpr char kOpcodes[] = "(.0KMNRab}hj])su\x81\x85\x86\x93\x94";
          text[at] = kOpcodes[draw(sizeof(kOpcodes) - 1)];
          break;
        }
        case 2:
          text.erase(at, 1 + draw(12));
          break;
        case 3:
          text[at] = static_cast<char>(text[at] ^ (1 << draw(8)));
          break;
        case 4:
          text.insert(draw(text.size()), text.substr(at, draw(40)));
          break;
        default: {  // A piece of another one.
          const std::string& other = corpus[draw(corpus.size())];
          const std::string piece = other.substr(draw(other.size()), draw(60));
          text.replace(at, piece.size(), piece);
        }
      }
    }
    accepted += CheckDcpBytes(text);
  }
  EXPECT_GT(accepted, kMutations / 100);
  EXPECT_LT(accepted, kMutations);
}

}  // namespace
}  // namespace holdfast::tools
