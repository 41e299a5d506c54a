// The fuzz target of torch's checkpoints as an ordinary test: its corpus, and
// some thousands of mutations of it, the same ones in every run.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/dcp_properties.h"
#include "tests/support/fuzz_corpus.h"

namespace holdfast::tools {
namespace {

TEST(DcpFuzzTest, WhatTorchWroteIsAccepted) {
  int accepted = 0;
  for (const std::string& bytes : tests::Corpus("dcp")) {
    accepted += CheckDcpBytes(bytes);
  }
  EXPECT_GE(accepted, 5);
}

TEST(DcpFuzzTest, MutationsAreRefusedOrKeepWhatHolds) {
  const std::vector<std::string> corpus = tests::Corpus("dcp");
  ASSERT_GE(corpus.size(), 5u);
  std::vector<std::string> opcodes;
  for (const char opcode :
       std::string("(.0KMNRab}hj])su\x81\x85\x86\x93\x94")) {
    opcodes.emplace_back(1, opcode);
  }
  int accepted = 0;
  constexpr int kMutations = 12'000;
  for (int seed = 1; seed <= kMutations; ++seed) {
    accepted += CheckDcpBytes(tests::Mutate(corpus, opcodes, seed));
  }
  EXPECT_GT(accepted, kMutations / 100);
  EXPECT_LT(accepted, kMutations);
}

}  // namespace
}  // namespace holdfast::tools
