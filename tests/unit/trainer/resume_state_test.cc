// What a checkpoint says about a run, read back; and what may not have changed.

#include "trainer/resume_state.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"(
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 2
ffn = 128
vocab = 258
seq_len = 32
[batch]
global_seqs = 8
micro_seqs = 1
[train]
steps = 10
seed = 7
[data]
paths = ["text"]
)";

Config Parsed(std::vector<std::string> sets = {}) {
  auto config = ParseConfig(kConfig, "test", sets);
  EXPECT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(ResolveConfig(*config, 1).ok());
  return *config;
}

ResumeState Saved() {
  ResumeState state;
  state.step = 120;
  state.tokens = 983040;
  state.skipped_steps = 2;
  state.data.cursor = 960;
  state.data.skipped = {{40, 60}};
  state.seed = 7;
  state.data_fingerprint = "0123456789abcdef";
  state.numerics_fingerprint = "onednn; compiler";
  state.config = CanonicalText(Parsed());
  return state;
}

TEST(ResumeStateTest, ComesBackFromItsAttributes) {
  const ResumeState saved = Saved();
  const auto read = FromAttributes(ToAttributes(saved));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 120);
  EXPECT_EQ(read->tokens, 983040u);
  EXPECT_EQ(read->skipped_steps, 2);
  EXPECT_EQ(read->data, saved.data);
  EXPECT_EQ(read->config, saved.config);
}

TEST(ResumeStateTest, NamesTheAttributeThatIsMissingOrMalformed) {
  auto attributes = ToAttributes(Saved());
  attributes["tokens"] = "many";
  EXPECT_THAT(std::string(FromAttributes(attributes).status().message()),
              HasSubstr("'tokens' is 'many'"));
  attributes.erase("step");
  EXPECT_THAT(std::string(FromAttributes(attributes).status().message()),
              HasSubstr("no attribute 'step'"));
}

TEST(ResumeStateTest, AnotherLayoutIsNoDifference) {
  Config now = Parsed();
  now.parallel.tp = 2;
  now.parallel.pp = 2;
  now.checkpoint.interval.steps = 1;
  const auto differences =
      CompareForResume(Saved(), now, "0123456789abcdef", "onednn; compiler");
  ASSERT_TRUE(differences.ok()) << differences.status();
  EXPECT_TRUE(differences->empty()) << differences->front().name;
}

TEST(ResumeStateTest, SeedModelDataAndNumericsMustBeAccepted) {
  const Config now = Parsed({"train.seed=8", "model.rope_theta=5e5"});
  const auto differences =
      CompareForResume(Saved(), now, "fedcba9876543210", "another library");
  ASSERT_TRUE(differences.ok()) << differences.status();
  EXPECT_EQ(differences->size(), 4u);
  const absl::Status refused = RefuseUnaccepted(*differences, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("fedcba9876543210"));
  EXPECT_TRUE(RefuseUnaccepted(
                  *differences,
                  std::vector<std::string>{"seed", "model", "data", "numerics"})
                  .ok());
}

TEST(ResumeStateTest, OfAnImportedStateOnlyTheModelIsCompared) {
  ResumeState saved;
  saved.data_fingerprint = "none";
  saved.numerics_fingerprint = "none";
  saved.config =
      "model.layers = 2\nmodel.hidden = 64\nmodel.heads = 4\n"
      "model.kv_heads = 2\nmodel.ffn = 128\nmodel.vocab = 258\n"
      "model.seq_len = 2048\n";
  saved.imported_from = "hf /models/small";
  const auto read = FromAttributes(ToAttributes(saved));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->imported_from, "hf /models/small");

  const auto same = CompareForResume(*read, Parsed(), "data", "numerics");
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(same->empty());
  const auto other = CompareForResume(
      *read, Parsed({"model.rope_theta=500000.0"}), "data", "numerics");
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_EQ(other->size(), 1u);
  EXPECT_EQ(other->front().name, "model.rope_theta");
}

TEST(ResumeStateTest, WhatARunSavedHasNoOrigin) {
  EXPECT_FALSE(ToAttributes(Saved()).contains(".imported_from"));
}

}  // namespace
}  // namespace holdfast::trainer
