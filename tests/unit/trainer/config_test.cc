// Loading: what a user writes, what the messages say when it is wrong, and the
// round trip through the canonical text.

#include "trainer/config.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kSmall[] = R"(
[model]
layers = 4
hidden = 32
heads = 4
ffn = 64
vocab = 258
seq_len = 16
[batch]
global_seqs = 8
[train]
steps = 10
[data]
paths = ["a", "b"]
)";

absl::StatusOr<Config> Parse(const std::string& text,
                             const std::vector<std::string>& sets = {}) {
  return ParseConfig(text, "run.toml", sets);
}

std::string MessageOf(const absl::StatusOr<Config>& config) {
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ConfigTest, TakesDefaultsForWhatIsNotGiven) {
  const auto config = Parse(kSmall);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.layers, 4);
  EXPECT_EQ(config->model.kv_heads, 4) << "as many as query heads";
  EXPECT_EQ(config->optim.lr, 3e-4);
  EXPECT_EQ(config->checkpoint.interval.steps, 500);
  EXPECT_THAT(config->data.paths, ElementsAre("a", "b"));
}

TEST(ConfigTest, OverridesApplyInOrderAndNeedNoQuotes) {
  const auto config =
      Parse(kSmall, {"parallel.tp=4", "parallel.tp=2", "device=fake",
                     "checkpoint.interval=30min", "data.paths=[\"x\"]",
                     "parallel.stages=[1, 3]", "optim.lr=1"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->parallel.tp, 2);
  EXPECT_EQ(config->device, DeviceChoice::kFake);
  EXPECT_EQ(config->checkpoint.interval.seconds, 1800);
  EXPECT_EQ(config->checkpoint.interval.steps, 0);
  EXPECT_THAT(config->data.paths, ElementsAre("x"));
  EXPECT_THAT(config->parallel.stages, ElementsAre(1, 3));
  EXPECT_EQ(config->optim.lr, 1.0) << "a whole number is a number too";
}

TEST(ConfigTest, UnknownKeyIsRefusedWithItsLineAndTheNearestKey) {
  EXPECT_THAT(MessageOf(Parse(absl::StrCat(kSmall, "[modle]\nlayers = 2\n"))),
              AllOf(StartsWith("run.toml:16: unknown key 'modle.layers'"),
                    HasSubstr("did you mean 'model.layers'?")));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"train.lr=1"})),
              AllOf(StartsWith("--set train.lr=1: unknown key 'train.lr'"),
                    HasSubstr("did you mean 'optim.lr'?")));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"zzzzzzzz=1"})),
              Not(HasSubstr("did you mean")));
}

TEST(ConfigTest, WhatEarlierProgramsSavedIsReadThoughKeysAreNoMore) {
  const auto config = Parse(kSmall);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto saved =
      Parse(absl::StrCat(CanonicalText(*config),
                         "parallel.overlap_grad_reduce = false\n"
                         "parallel.overlap_param_gather = false\n"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(*saved, *config);
  EXPECT_THAT(MessageOf(Parse(kSmall, {"parallel.overlap_grad_reduce=true"})),
              HasSubstr("unknown key 'parallel.overlap_grad_reduce'"));
}

TEST(ConfigTest, WrongTypeAndRangeSayWhatWasExpectedAndFound) {
  EXPECT_THAT(MessageOf(Parse(absl::StrCat(kSmall, "weights = 3\n"))),
              StartsWith("run.toml:15: data.weights: expected list of numbers, "
                         ">= 0; found 3"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"model.layers=0"})),
              HasSubstr("model.layers: expected integer, 1 to 65536; found 0"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"model.layers=4.0"})),
              HasSubstr("expected integer, 1 to 65536; found 4.0"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"model.tied=yes"})),
              HasSubstr("expected true or false; found \"yes\""));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"optim.beta1=1.0"})),
              HasSubstr("expected number, 0 to 1 (excluded); found 1.0"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"optim.lr=nan"})),
              HasSubstr("expected number, above 0; found nan"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"numerics.compute=fp16"})),
              HasSubstr("expected one of \"bf16\", \"f32\"; found \"fp16\""));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"checkpoint.interval=30 minutes"})),
              HasSubstr("found \"30 minutes\""));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"parallel.stages=[2,0]"})),
              HasSubstr("list of integers, >= 1; found [2, 0]"));
  EXPECT_THAT(MessageOf(Parse(kSmall, {"parallel.tp"})),
              HasSubstr("expected KEY=VALUE"));
}

TEST(ConfigTest, BrokenTomlNamesItsLine) {
  EXPECT_THAT(MessageOf(Parse("[model]\nlayers = \n")),
              StartsWith("run.toml:2: not valid TOML: "));
  EXPECT_THAT(MessageOf(Parse("[model]\nlayers = 1\n\xc3\xa4 = 2\nffn = 3")),
              StartsWith("run.toml:3: not valid TOML: "));
  EXPECT_THAT(MessageOf(Parse("[model]\nlayers = 1\nlayers = 2\n")),
              StartsWith("run.toml:3: not valid TOML: "));
  EXPECT_THAT(MessageOf(Parse("[train]\nseed = 2026-01-01\n")),
              StartsWith("run.toml:2: train.seed: "));
}

TEST(ConfigTest, NoTextAtAllCrashesIt) {
  for (uint64_t round = 0; round < 1000; ++round) {
    std::string text = kSmall;
    for (uint64_t change = 0; change <= round % 5; ++change) {
      const uint64_t random = ckpt::Philox64(2, change, round);
      text[random % text.size()] = static_cast<char>(random >> 32);
    }
    // Most are refused; what is taken survives the way to text and back.
    const auto config = Parse(text);
    if (!config.ok()) continue;
    const auto again = Parse(CanonicalText(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *config);
  }
}

TEST(ConfigTest, BytesBeyondAsciiComeThroughInStringsAndComments) {
  const std::string text = absl::StrCat(kSmall,
                                        "# Gr\xc3\xb6\xc3\x9f"
                                        "e, ~7e\nweights = [1, 1] # \xa7\n");
  for (const std::string path : {"gr\xc3\xb6\xc3\x9f"
                                 "e",
                                 "a~7eb~", "\xff"}) {
    const auto config = Parse(text, {"data.paths=['" + path + "', 'b']"});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(config->data.paths, ElementsAre(path, "b"));
    const auto again = Parse(CanonicalText(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *config);
  }
  EXPECT_THAT(MessageOf(Parse("\"gr\xc3\xb6\" = 1\n")),
              HasSubstr("unknown key 'gr\xc3\xb6'"));
  EXPECT_THAT(MessageOf(Parse("s = \"\"\"\\\n\xc2\xa7\"\"\"\n")),
              HasSubstr("unknown key 's'"));
  EXPECT_THAT(MessageOf(Parse("s = \"\\u007E41\"\n")),
              HasSubstr("write it as itself"));
}

TEST(ConfigTest, MissingKeysAreNamedTogether) {
  EXPECT_THAT(MessageOf(Parse("[model]\nlayers = 2\n")),
              AllOf(HasSubstr("model.hidden, model.heads, model.ffn"),
                    HasSubstr("batch.global_seqs"), HasSubstr("train.steps"),
                    HasSubstr("data.paths"), Not(HasSubstr("model.layers"))));
}

TEST(ConfigTest, MissingFileIsNamed) {
  const auto config = LoadConfig("/nonexistent/run.toml", {});
  EXPECT_THAT(MessageOf(config), AllOf(HasSubstr("/nonexistent/run.toml"),
                                       HasSubstr("No such file or directory")));
}

TEST(ConfigTest, CanonicalTextIsSortedAndGivesTheSameConfigBack) {
  const auto config = Parse(
      kSmall,
      {"optim.lr=1.2345678901234567e-3", "checkpoint.interval=90s",
       "data.paths=['with \"quotes\" and \\']", "train.seed=9007199254740993",
       "data.weights=[1, 0.1]", "numerics.compute=f32", "model.tied=true",
       "parallel.stages=[1,3]", "parallel.pp=2"});
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string text = CanonicalText(*config);
  const auto again = ParseConfig(text, "canonical", {});
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(*again, *config);
  EXPECT_EQ(CanonicalText(*again), text);
  EXPECT_THAT(text, HasSubstr("train.seed = 9007199254740993\n"));
  EXPECT_THAT(text, HasSubstr("checkpoint.interval = \"90s\"\n"));
  EXPECT_LT(text.find("batch."), text.find("train."));
}

TEST(ConfigTest, EveryKeyHasOneRowWithAUniqueNameAndHelp) {
  std::set<std::string> names;
  for (const KeyRow& row : KeyRows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.help.empty()) << row.name;
    EXPECT_FALSE(row.type.empty()) << row.name;
  }
  EXPECT_TRUE(names.contains("checkpoint.fence_ms"));
  EXPECT_TRUE(names.contains("numerics.virtual_dp"));
}

TEST(ConfigTest, EveryDefaultIsWithinItsOwnRange) {
  for (const KeyRow& row : KeyRows()) {
    if (row.default_value == "required") continue;
    EXPECT_TRUE(
        Parse(kSmall, {absl::StrCat(row.name, "=", row.default_value)}).ok())
        << row.name << " = " << row.default_value;
  }
}

TEST(ConfigTest, ResumeComparesWhatIsComputedAndNothingElse) {
  Config saved = *Parse(kSmall);
  ASSERT_TRUE(ResolveConfig(saved, 1).ok());
  Config now =
      *Parse(kSmall, {"parallel.pp=2", "threads=7", "checkpoint.interval=3",
                      "data.paths=[\"c\"]", "train.eval_seqs=1",
                      "model.init_std=0.5", "fault.grace_s=9"});
  ASSERT_TRUE(ResolveConfig(now, 4).ok());
  EXPECT_THAT(CompareForResume(saved, now), IsEmpty());

  now.train.seed = 2;
  now.model.layers = 5;
  now.numerics.compute = ComputeType::kF32;
  now.batch.global_seqs = 16;
  now.optim.decay_steps = 99;
  now.data.weights = {1, 2};
  EXPECT_THAT(
      CompareForResume(saved, now),
      ElementsAre(ConfigDifference{"model", "model.layers", "4", "5"},
                  ConfigDifference{"batch", "batch.global_seqs", "8", "16"},
                  ConfigDifference{"seed", "train.seed", "1", "2"},
                  ConfigDifference{"optim", "optim.decay_steps", "10", "99"},
                  ConfigDifference{"data", "data.weights", "[]", "[1.0, 2.0]"},
                  ConfigDifference{"numerics", "numerics.compute", "\"bf16\"",
                                   "\"f32\""}));
}

TEST(ConfigTest, DifferencesAreAcceptedByNameOrByGroupOnly) {
  const std::vector<ConfigDifference> differences = {
      {"seed", "train.seed", "1", "2"},
      {"data", "data.fingerprint", "aa", "bb"},
      {"optim", "optim.lr", "0.1", "0.2"}};
  const auto refuse = [&](const std::vector<std::string>& accepted) {
    return RefuseUnaccepted(differences, accepted);
  };
  EXPECT_TRUE(refuse({"seed", "data.fingerprint", "optim"}).ok());
  const absl::Status status = refuse({"train.seed", "optim.lr"});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("data.fingerprint: checkpoint has aa, this "
                              "start wants bb"),
                    Not(HasSubstr("train.seed"))));
  EXPECT_EQ(refuse({"sede"}).code(), absl::StatusCode::kInvalidArgument);
  // Could differ, does not: scripts may always pass it.
  const std::vector<std::string> idle = {"model", "optim.lr",
                                         "data.fingerprint"};
  EXPECT_TRUE(RefuseUnaccepted({}, idle).ok());
}

}  // namespace
}  // namespace holdfast::trainer
