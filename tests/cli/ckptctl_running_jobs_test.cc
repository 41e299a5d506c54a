// `ckptctl import` of running jobs, on the golden checkpoints that torch and
// megatron-core wrote (tests/golden/make_dcp_golden.py): by the program, on
// several layouts, and what it says when it refuses.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_program.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = HOLDFAST_SOURCE_DIR "/tests/golden/";

Outcome Import(const std::string& name, const std::string& format,
               const std::string& out, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"import", kGolden + name, "--from",
                                        format,   "--out",        out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunProgram("ckptctl", arguments);
}

std::string Model(const TestFolder& folder) {
  folder.Write("model.toml",
               "[model]\nlayers = 1\nhidden = 16\nheads = 4\nkv_heads = 2\n"
               "ffn = 12\nvocab = 11\nseq_len = 64\n");
  return folder / "model.toml";
}

TEST(CkptctlRunningJobsTest, TorchtitansStateIsTheSameOnAnyLayout) {
  const TestFolder folder;
  const std::string model = Model(folder);
  const Outcome one = Import("dcp-titan", "torchtitan", folder / "one",
                             {"--model", model, "--json"});
  ASSERT_EQ(one.code, 0) << one;
  const Outcome cut =
      Import("dcp-titan", "torchtitan", folder / "cut",
             {"--model", model, "--json", "--tp", "2", "--dp", "3"});
  ASSERT_EQ(cut.code, 0) << cut;
  const auto first = nlohmann::json::parse(one.out);
  const auto second = nlohmann::json::parse(cut.out);
  EXPECT_EQ(first["step"], 3);
  EXPECT_EQ(first["digest"], second["digest"]);
  for (const char* run : {"one", "cut"}) {
    const Outcome verified = RunProgram("ckptctl", {"verify", folder / run});
    EXPECT_EQ(verified.code, 0) << verified;
  }
}

TEST(CkptctlRunningJobsTest, MegatronsArgumentsSayWhatTheModelIs) {
  const TestFolder folder;
  const Outcome done = Import("dcp-megatron", "megatron", folder / "run");
  ASSERT_EQ(done.code, 0) << done;
  EXPECT_THAT(done.out, HasSubstr("model.kv_heads = 2"));
  EXPECT_THAT(done.out, HasSubstr("note: rates, schedule and data cursor"));
}

TEST(CkptctlRunningJobsTest, AnyDcpCheckpointIsCutByRows) {
  const TestFolder folder;
  const Outcome done =
      Import("dcp-mixed", "dcp", folder / "run", {"--dp", "3"});
  ASSERT_EQ(done.code, 0) << done;
  const Outcome shown =
      RunProgram("ckptctl", {"show", folder / "run", "--json"});
  EXPECT_THAT(shown.out, HasSubstr("\"grid\""));
  EXPECT_EQ(RunProgram("ckptctl", {"verify", folder / "run"}).code, 0);
}

TEST(CkptctlRunningJobsTest, WhatIsNotUnderstoodIsNamedAndNothingIsMade) {
  const TestFolder folder;
  const Outcome unknown = Import("dcp-mixed", "torchtitan", folder / "run",
                                 {"--model", Model(folder)});
  EXPECT_EQ(unknown.code, 78) << unknown;
  EXPECT_THAT(unknown.err, HasSubstr("tok_embeddings.weight"));
  const Outcome no_model = Import("dcp-titan", "torchtitan", folder / "run");
  EXPECT_EQ(no_model.code, 78) << no_model;
  EXPECT_THAT(no_model.err, HasSubstr("give --model FILE"));
  const Outcome typing = Import("dcp-titan", "torchtitan", folder / "run",
                                {"--model", Model(folder), "--ignore", "x.y"});
  EXPECT_EQ(typing.code, 78) << typing;
  EXPECT_THAT(typing.err, HasSubstr("--ignore x.y"));
  const Outcome hf =
      Import("dcp-titan", "hf", folder / "run", {"--model", Model(folder)});
  EXPECT_EQ(hf.code, 78) << hf;
  EXPECT_THAT(hf.err, HasSubstr("mean nothing to --from hf"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace
}  // namespace holdfast::tests
