// What scripts rely on of `holdfast`, `holdfast data` and `holdfast config`:
// exit codes, what goes to stdout and to stderr, and words of the messages.

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_program.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Outcome Holdfast(const std::vector<std::string>& arguments) {
  return RunProgram("holdfast", arguments);
}

std::string Config(const std::string& name) {
  return std::string(HOLDFAST_SOURCE_DIR) + "/trainer/configs/" + name;
}

TEST(HoldfastCliTest, HelpGoesToStdoutWithZero) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"--help"}, {"data", "--help"}, {"config", "-h"}}) {
    const Outcome outcome = Holdfast(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: holdfast")) << outcome;
    EXPECT_THAT(outcome.err, IsEmpty());
  }
  EXPECT_THAT(Holdfast({"--help"}).out,
              AllOf(HasSubstr("\n  data "), HasSubstr("\n  config "),
                    HasSubstr("75 saved and asks to be started again")));
}

TEST(HoldfastCliTest, VersionIsOneLine) {
  const Outcome outcome = Holdfast({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("holdfast 0."));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1);
}

TEST(HoldfastCliTest, WrongUsageIs64AndSaysWhereToLook) {
  struct Case {
    std::vector<std::string> arguments;
    std::string words;
  };
  for (const Case& wrong : std::vector<Case>{
           {{}, "holdfast: "},
           {{"trian"}, "no command is named 'trian'"},
           {{"data"}, "holdfast data: --in is required"},
           {{"data", "--in", "a"}, "--out is required"},
           {{"data", "--in", "a", "--out", "b", "--tokenizer", "gpt2"}, "gpt2"},
           {{"data", "--in", "a", "--out", "b", "--split", "page"}, "page"},
           {{"config"}, "--keys or --check FILE is required"},
           {{"config", "--keys", "--world", "0"}, "--world"},
           {{"config", "--keys", "--frobnicate"}, "--frobnicate"}}) {
    const Outcome outcome = Holdfast(wrong.arguments);
    EXPECT_EQ(outcome.code, 64) << outcome;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err,
                AllOf(StartsWith("holdfast"), HasSubstr(wrong.words),
                      HasSubstr("--help'")));
  }
}

TEST(HoldfastCliTest, ResultsThatCannotBeWrittenAreAnIoError) {
  const Outcome outcome =
      RunProgram("holdfast", {"config", "--keys"}, "/dev/full");
  EXPECT_EQ(outcome.code, 74) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("No space left on device"));
}

TEST(HoldfastDataTest, MakesTokenFilesAndSaysWhatTheyHold) {
  const TestFolder folder;
  folder.Write("a.txt", "abcab");
  folder.Write("b.txt", "cc");
  const Outcome outcome = Holdfast({"data", "--in", folder / "a.txt",
                                    folder / "b.txt", "--out", folder / "t"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("11 tokens in 2 documents from 7 B of text"),
                    HasSubstr("vocabulary 258"), HasSubstr("nats a token")));
  EXPECT_THAT(outcome.err, IsEmpty()) << "no progress lines for short work";
  EXPECT_EQ(FileText(folder / "t.bin").size(), 22);
  EXPECT_THAT(FileText(folder / "t.idx"), StartsWith("MMIDIDX"));
}

TEST(HoldfastDataTest, JsonHasTheSameFigures) {
  const TestFolder folder;
  folder.Write("a.txt", "Q: x\nA: y\n\nQ: z\n");
  const Outcome outcome =
      Holdfast({"data", "--json", "--in", folder / "a.txt", "--out",
                folder / "t", "--split", "blank-line", "--mask-lines", "Q:"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["documents"], 2);
  EXPECT_EQ(json["tokens"], 19);
  EXPECT_EQ(json["counting_tokens"], 9);
  EXPECT_EQ(json["vocab"], 258);
  EXPECT_GT(json["unigram_nats"], 1.0);
  EXPECT_THAT(FileText(folder / "t.mask"), StartsWith("HFMASK1"));
}

TEST(HoldfastDataTest, BadInputIs78AndLeavesNothing) {
  const TestFolder folder;
  folder.Write("a.txt", "abc");
  folder.Write("empty.txt", "");
  const auto fails = [&](const std::vector<std::string>& more,
                         const std::string& words) {
    std::vector<std::string> arguments = {"data"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Holdfast(arguments);
    EXPECT_EQ(outcome.code, 78) << outcome;
    EXPECT_THAT(outcome.err,
                AllOf(StartsWith("holdfast data: "), HasSubstr(words)));
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(folder / "t.bin"));
  };
  fails({"--in", folder / "none.txt", "--out", folder / "t"},
        "none.txt: No such file");
  fails({"--in", folder / "empty.txt", "--out", folder / "t"}, "are empty");
  fails({"--in", folder / "a.txt", "--out", folder / "no/t"}, "no/t.bin");
}

TEST(HoldfastDataTest, ReplacesASetOnlyWhenAsked) {
  const TestFolder folder;
  folder.Write("a.txt", "abc");
  const std::vector<std::string> arguments = {"data", "--in", folder / "a.txt",
                                              "--out", folder / "t"};
  ASSERT_EQ(Holdfast(arguments).code, 0);
  const Outcome again = Holdfast(arguments);
  EXPECT_EQ(again.code, 78);
  EXPECT_THAT(again.err, HasSubstr("t.idx exists"));
  std::vector<std::string> replace = arguments;
  replace.push_back("--replace");
  EXPECT_EQ(Holdfast(replace).code, 0);
}

TEST(HoldfastConfigTest, ListsEveryKey) {
  const Outcome outcome = Holdfast({"config", "--keys"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  for (const char* key :
       {"model.layers   (required)", "model.kv_heads = 0", "parallel.tp = 1",
        "parallel.stages = []", "batch.global_seqs   (required)",
        "checkpoint.interval = 500", "checkpoint.fence_ms = 2000",
        "numerics.virtual_dp = 0", "fault.step_timeout_s = 300",
        "device = \"cpu\"", "threads = 0"}) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string(key) + " ")) << key;
  }
  std::istringstream lines(Holdfast({"config", "--keys", "--json"}).out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(nlohmann::json::parse(line).contains("default")) << line;
  }
  EXPECT_GT(count, 50);
}

TEST(HoldfastConfigTest, SaysWhetherAFileFits) {
  const Outcome fits =
      Holdfast({"config", "--check", Config("tiny.toml"), "--world", "12",
                "--set", "parallel.tp=2", "--set", "parallel.pp=2"});
  EXPECT_EQ(fits.code, 0) << fits;
  EXPECT_THAT(fits.out, HasSubstr("fits 12 ranks: tp2-pp2-dp3, layers a stage "
                                  "[2, 2], 1,624,128 parameters"));
  const Outcome misfit = Holdfast({"config", "--check", Config("tiny.toml"),
                                   "--world", "3", "--set", "parallel.tp=2"});
  EXPECT_EQ(misfit.code, 78) << misfit;
  EXPECT_THAT(misfit.out, IsEmpty());
  EXPECT_THAT(misfit.err, HasSubstr("does not fit: 3 ranks do not divide"));
}

TEST(HoldfastConfigTest, WrongFilesAre78WithTheirLine) {
  const TestFolder folder;
  folder.Write("typo.toml", "[model]\nlayer = 4\n");
  const Outcome typo = Holdfast({"config", "--check", folder / "typo.toml"});
  EXPECT_EQ(typo.code, 78);
  EXPECT_THAT(typo.err, AllOf(HasSubstr("typo.toml:2: unknown key"),
                              HasSubstr("did you mean 'model.layers'?")));
  const Outcome unbuilt = Holdfast({"config", "--check", Config("tiny.toml"),
                                    "--set", "parallel.cp=2", "--world", "2"});
  EXPECT_EQ(unbuilt.code, 78);
  EXPECT_THAT(unbuilt.err, HasSubstr("no context parallelism"));
  const Outcome missing = Holdfast({"config", "--check", folder / "no.toml"});
  EXPECT_EQ(missing.code, 78);
  EXPECT_THAT(missing.err, HasSubstr("no.toml: No such file"));
}

TEST(HoldfastConfigTest, PrintsAConfigurationThatReadsBack) {
  const TestFolder folder;
  const Outcome printed =
      Holdfast({"config", "--check", Config("tiny.toml"), "--print"});
  ASSERT_EQ(printed.code, 0) << printed;
  folder.Write("again.toml", printed.out);
  const Outcome again =
      Holdfast({"config", "--check", folder / "again.toml", "--print"});
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_EQ(again.out, printed.out);
  EXPECT_THAT(printed.out, Not(IsEmpty()));
}

}  // namespace
}  // namespace holdfast::tests
