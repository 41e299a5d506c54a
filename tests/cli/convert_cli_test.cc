// What scripts rely on of `ckptctl export` and `ckptctl import`: exit codes,
// the keys of their JSON, words of their messages; and that a training goes on
// from what was imported.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/runs/small_runs.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

class ConvertCliTest : public testing::Test {
 protected:
  // Must end with `code`, and says so on stderr when that is not 0.
  void ExpectRefused(const std::vector<std::string>& arguments, int code,
                     const std::string& words) const {
    const Ended ended = runs_.Program("ckptctl", arguments);
    EXPECT_EQ(ended.code, code) << ended;
    EXPECT_THAT(ended.err, HasSubstr(words));
    EXPECT_THAT(ended.out, IsEmpty());
  }
  bool Exists(const std::string& name) const {
    return std::filesystem::exists(runs_.Path(name));
  }

  SmallRuns runs_;
};

TEST_F(ConvertCliTest, AModelGoesOutComesInAndIsTrainedOn) {
  runs_.TrainToTheEnd("one", {.sets = {"train.steps=4"}});
  // A checkpoint of two ranks, also where there is no MPI.
  runs_.Ckptctl({"reshard", runs_.Path("one"), "--tp", "2", "--pp", "1", "--dp",
                 "1", "--out", runs_.Path("a")});
  const Json out =
      runs_.Ckptctl({"export", runs_.Path("a"), "--to", "hf", "--out",
                     runs_.Path("hf"), "--max-shard-size", "100kB"});
  EXPECT_EQ(out["format"], "hf");
  EXPECT_EQ(out["layout"], "tp2-pp1-dp1");
  EXPECT_EQ(out["tensors"], 38);
  EXPECT_GT(out["files"].size(), 3u);
  EXPECT_TRUE(Exists("hf/config.json"));

  const Json in =
      runs_.Ckptctl({"import", runs_.Path("hf"), "--from", "hf", "--out",
                     runs_.Path("start"), "--pp", "2", "--stages", "3,1"});
  EXPECT_EQ(in["step"], 0);
  EXPECT_EQ(in["layout"], "tp1-pp2-dp1");
  EXPECT_THAT(in["model"].get<std::string>(), HasSubstr("model.hidden = 48"));
  EXPECT_EQ(runs_.Digest("start"), in["digest"]);
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("start")})["ok"], true);

  // Masters and weights are those that were exported.
  for (const char* kind : {"master", "weight"}) {
    runs_.Ckptctl({"diff", runs_.Path("a"), runs_.Path("start"), "--kind", kind,
                   "--no-attributes"});
  }
  // Step 5 of the old run's data is step 1 of the new one's; the loss starts
  // where the old one had come to, not where it began.
  runs_.TrainToTheEnd("b", {.sets = {"train.steps=2"},
                            .words = {"--init-from", runs_.Path("start")}});
  EXPECT_LT(runs_.Metrics("b")[0].loss, runs_.Metrics("one")[0].loss - 0.05);
  EXPECT_EQ(runs_.LastStep("b"), 2);
}

TEST_F(ConvertCliTest, AStartFromAnotherModelIs78AndNamesTheKey) {
  runs_.TrainToTheEnd("a", {.sets = {"train.steps=1"}});
  runs_.Ckptctl(
      {"export", runs_.Path("a"), "--to", "hf", "--out", runs_.Path("hf")});
  runs_.Ckptctl({"import", runs_.Path("hf"), "--from", "hf", "--out",
                 runs_.Path("start")});
  const Ended ended =
      runs_.Train("b", {.sets = {"model.rope_theta=500000.0"},
                        .words = {"--init-from", runs_.Path("start")}});
  EXPECT_EQ(ended.code, 78) << ended;
  EXPECT_THAT(ended.out + ended.err, HasSubstr("model.rope_theta"));
}

TEST_F(ConvertCliTest, RefusalsHaveTheirCodesAndMakeNothing) {
  runs_.TrainToTheEnd("a", {.sets = {"train.steps=1"}});
  const std::string run = runs_.Path("a");
  const std::string out = runs_.Path("out");
  ExpectRefused({"export", run, "--to", "pickle", "--out", out}, 64, "--to");
  ExpectRefused({"export", run, "--to", "hf"}, 64, "--out");
  ExpectRefused({"export", run, "--to", "hf", "--out", out, "--dtype", "f8"},
                64, "--dtype");
  ExpectRefused(
      {"export", run, "--to", "hf", "--out", out, "--max-shard-size", "many"},
      64, "no number of bytes");
  ExpectRefused({"export", runs_.Path("none"), "--to", "hf", "--out", out}, 66,
                "none");
  ExpectRefused({"import", runs_.Path("none"), "--from", "hf", "--out", out},
                66, "none");
  ExpectRefused({"import", run, "--from", "hf", "--out", out}, 66,
                "config.json");
  EXPECT_FALSE(Exists("out"));

  runs_.Ckptctl({"export", run, "--to", "hf", "--out", out});
  ExpectRefused({"export", run, "--to", "hf", "--out", out}, 78,
                "exists already");
  ExpectRefused(
      {"import", out, "--from", "hf", "--out", runs_.Path("in"), "--tp", "3"},
      78, "parallel.tp = 3");
  ExpectRefused({"import", out, "--from", "hf", "--out", run}, 78, "a");
  // A header that claims more than the file has.
  std::string bytes = FileText(out + "/model.safetensors");
  bytes[3] = '\x7f';
  runs_.WriteFile("out/model.safetensors", bytes);
  ExpectRefused({"import", out, "--from", "hf", "--out", runs_.Path("in")}, 78,
                "safetensors header");
  EXPECT_FALSE(Exists("in"));
}

TEST_F(ConvertCliTest, HelpNamesTheFormats) {
  for (const char* verb : {"import", "export"}) {
    const Ended ended = runs_.Program("ckptctl", {verb, "--help"});
    EXPECT_EQ(ended.code, 0);
    EXPECT_THAT(ended.out, AllOf(HasSubstr("Formats of"), HasSubstr("hf "),
                                 HasSubstr("--out")));
    EXPECT_THAT(ended.err, IsEmpty());
  }
}

}  // namespace
}  // namespace holdfast::tests
