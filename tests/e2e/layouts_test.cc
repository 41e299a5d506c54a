// A run that goes on with another number of ranks, divided in another way: the
// same bits wherever they are promised, and close where they are not. The drill
// of the quickstart, in small.

#include <cmath>
#include <filesystem>

#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LayoutsTest : public JobTest {
 protected:
  nlohmann::json Drill(const std::string& layouts,
                       const std::vector<std::string>& sets) {
    // Steps of some 10 ms or more, so that a save is over before the next.
    std::vector<std::string> words = {"drill",
                                      "kill-mid-save",
                                      "--run",
                                      runs_.Path("drill"),
                                      "--config",
                                      runs_.config(),
                                      "--json",
                                      "--layouts",
                                      layouts,
                                      "--set",
                                      "train.steps=44",
                                      "--set",
                                      "batch.global_seqs=16",
                                      "--set",
                                      "checkpoint.interval=7",
                                      "--set",
                                      "optim.decay_steps=44"};
    for (const std::string& set : sets) {
      words.insert(words.end(), {"--set", set});
    }
    const Ended ended = runs_.Program("holdfast", words);
    EXPECT_EQ(ended.code, 0) << ended;
    EXPECT_THAT(ended.out, HasSubstr("is killed in the middle of the save"));
    EXPECT_THAT(ended.err, HasSubstr("first failing rank"));
    // The last line but one is the summary.
    const size_t at = ended.out.find("\n{");
    if (at == std::string::npos) return nlohmann::json::object();
    const size_t end = ended.out.find('\n', at + 1);
    return nlohmann::json::parse(ended.out.substr(at + 1, end - at - 1),
                                 nullptr, /*allow_exceptions=*/false);
  }
};

TEST_F(LayoutsTest, TheDrillKillsASaveAndComesBackOnTwoLayoutsTied) {
  const nlohmann::json summary =
      Drill("tp1-pp2-dp2,tp1-pp1-dp3,tp1-pp2-dp1", {});
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["passed"], true);
  EXPECT_EQ(summary["killed"]["exit_code"], 128 + 9);
  EXPECT_EQ(summary["digest_reference"], summary["digest_broken"]);
  ASSERT_THAT(summary["segments"], SizeIs(3));
  for (const auto& segment : summary["segments"]) {
    EXPECT_EQ(segment["bits_promised"], true);
    EXPECT_EQ(segment["loss_bits_equal"], segment["steps"]);
    EXPECT_EQ(segment["samples_equal"], segment["steps"]);
  }
}

TEST_F(LayoutsTest, TheDrillKillsASaveAndComesBackOnAnotherLayoutUntied) {
  const nlohmann::json summary =
      Drill("tp2-pp1-dp2,tp2-pp2-dp1", {"model.tied=false"});
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["passed"], true);
  EXPECT_EQ(summary["digest_reference"], summary["digest_broken"]);
}

TEST_F(LayoutsTest, TheDrillFailsWhereNothingCanBeKilled) {
  const Ended ended = runs_.Program(
      "holdfast",
      {"drill", "kill-mid-save", "--run", runs_.Path("drill"), "--config",
       runs_.config(), "--layouts", "tp1-pp1-dp2,tp1-pp2-dp1"});
  EXPECT_EQ(ended.code, 78) << "8 steps are too few: " << ended;
  EXPECT_THAT(ended.err, HasSubstr("leave no room"));
}

TEST_F(LayoutsTest, FilesThatRanksShareGoOnAndComeBackOnOtherLayouts) {
  runs_.TrainToTheEnd("ref", {.ranks = 1});
  runs_.TrainToTheEnd(
      "run", {.ranks = 4, .sets = {"checkpoint.files=2", "train.steps=3"}});
  EXPECT_EQ(runs_.Ckptctl({"show", runs_.Path("run")})["files"], 2);
  runs_.TrainToTheEnd(
      "run", {.ranks = 4, .sets = {"checkpoint.files=2", "train.steps=5"}});
  runs_.TrainToTheEnd(
      "run", {.ranks = 2, .pp = 2, .sets = {"checkpoint.files=per_node"}});
  EXPECT_EQ(runs_.Ckptctl({"show", runs_.Path("run")})["files"], 1);
  runs_.ExpectSameSteps("ref", "run");
  EXPECT_EQ(runs_.Digest("run"), runs_.Digest("ref"));
  const nlohmann::json whole =
      runs_.Ckptctl({"verify", runs_.Path("run"), "--hash"});
  EXPECT_EQ(whole["ok"], true);
  EXPECT_EQ(whole["digest"], runs_.Digest("run"));
}

// Of 8 leaves three replicas get 3, 3 and 2: the tree of sums is cut where it
// is not balanced.
TEST_F(LayoutsTest, UnequalLeavesGiveTheSameBitsOnOtherLayouts) {
  for (const char* tied : {"model.tied=true", "model.tied=false"}) {
    const std::string name = tied;
    runs_.TrainToTheEnd(name + "-ref", {.ranks = 1, .sets = {tied}});
    runs_.TrainToTheEnd(name,
                        {.ranks = 6, .pp = 2, .sets = {tied, "train.steps=4"}});
    EXPECT_EQ(runs_.Metrics(name).back().layout, "tp1-pp2-dp3");
    runs_.CopyRun(name, name + "-b");
    runs_.TrainToTheEnd(name, {.ranks = 4, .sets = {tied}});
    EXPECT_EQ(runs_.Metrics(name).back().layout, "tp1-pp1-dp4");
    runs_.TrainToTheEnd(name + "-b", {.ranks = 2, .pp = 2, .sets = {tied}});
    EXPECT_EQ(runs_.Metrics(name + "-b").back().layout, "tp1-pp2-dp1");
    for (const std::string& run : {name, name + "-b"}) {
      runs_.ExpectSameSteps(name + "-ref", run);
      EXPECT_EQ(runs_.Digest(run), runs_.Digest(name + "-ref"));
    }
  }
}

TEST_F(LayoutsTest, AnotherTpHasTheSameStateAndNearlyTheSameLoss) {
  runs_.TrainToTheEnd("ref", {.ranks = 2, .tp = 2});
  runs_.TrainToTheEnd("run", {.ranks = 2, .tp = 2, .sets = {"train.steps=4"}});
  const std::string digest = runs_.Digest("run");
  EXPECT_EQ(digest, runs_.Digest("ref@4"));
  // A save at once, by a job of another TP, is of the same state.
  for (const JobSpec& other :
       {JobSpec{.ranks = 1}, JobSpec{.ranks = 2, .pp = 2}}) {
    runs_.CopyRun("run", "copy");
    JobSpec at_once = other;
    at_once.sets = {"train.steps=4"};
    at_once.words = {"--resume=never", "--init-from", runs_.Path("run")};
    runs_.TrainToTheEnd("copy", at_once);
    const nlohmann::json shown =
        runs_.Ckptctl({"show", runs_.Path("copy"), "--hash"});
    EXPECT_EQ(shown["digest"], digest);
    EXPECT_EQ(shown["incarnation"], 2) << "it has not saved at once";
    EXPECT_EQ(shown["world"], other.ranks);
  }
  runs_.TrainToTheEnd("run", {.ranks = 1});
  const auto expected = runs_.Metrics("ref");
  const auto found = runs_.Metrics("run");
  ASSERT_THAT(found, SizeIs(8));
  EXPECT_EQ(found[4].layout, "tp1-pp1-dp1");
  EXPECT_LT(std::abs(found[4].loss - expected[4].loss),
            1e-3 * expected[4].loss);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(found[i].sample_digest, expected[i].sample_digest);
  }
}

TEST_F(LayoutsTest, ANewRunBeginsFromAnotherOnAnotherLayout) {
  runs_.TrainToTheEnd("a@home", {.ranks = 2, .sets = {"train.steps=4"}});
  for (const char* from : {"a@home@4", "a@home"}) {
    std::filesystem::remove_all(runs_.Path("b"));
    runs_.TrainToTheEnd(
        "b", {.ranks = 4, .pp = 2, .words = {"--init-from", runs_.Path(from)}});
    EXPECT_EQ(runs_.Metrics("b").front().step, 5) << from;
  }
  runs_.TrainToTheEnd("a@home", {.ranks = 2});
  runs_.ExpectSameSteps("a@home", "b", 5);
  EXPECT_EQ(runs_.Digest("a@home"), runs_.Digest("b"));
}

// What ckpt-reshard makes is resumed, or begun from, with the bits of a resume
// of its source on that layout.
TEST_F(LayoutsTest, ARewrittenCheckpointGoesOnWithTheBitsOfItsSource) {
  for (const char* tied : {"model.tied=true", "model.tied=false"}) {
    const std::string name = tied;
    runs_.TrainToTheEnd(name,
                        {.ranks = 2, .pp = 2, .sets = {tied, "train.steps=4"}});
    const auto reshard = [&](int tp, int pp, int dp, const std::string& out) {
      const Ended ended = runs_.Program(
          "ckpt-reshard", {runs_.Path(name), "--tp", std::to_string(tp), "--pp",
                           std::to_string(pp), "--dp", std::to_string(dp),
                           "--out", runs_.Path(out)});
      ASSERT_EQ(ended.code, 0) << ended;
      EXPECT_EQ(runs_.Digest(out), runs_.Digest(name));
    };
    const JobSpec other = {.ranks = 6, .tp = 2, .sets = {tied}};
    reshard(2, 1, 3, name + "-r");
    runs_.CopyRun(name, name + "-direct");
    runs_.TrainToTheEnd(name + "-direct", other);
    runs_.TrainToTheEnd(name + "-r", other);
    EXPECT_EQ(runs_.Metrics(name + "-r").front().step, 5);
    runs_.ExpectSameSteps(name + "-direct", name + "-r", 5);
    EXPECT_EQ(runs_.Digest(name + "-r"), runs_.Digest(name + "-direct"));

    if (name == "model.tied=false") continue;
    // As the beginning of a run, on the layout of the source.
    JobSpec begun = {.ranks = 2, .pp = 2, .sets = {tied}};
    // Several ranks make it together.
    const Ended together = runs_.Program(
        "holdfast",
        {"launch", "-n", "3", "--", HOLDFAST_BIN_DIR "/ckpt-reshard",
         runs_.Path(name), "--tp", "1", "--pp", "1", "--dp", "5", "--out",
         runs_.Path(name + "-i")});
    ASSERT_EQ(together.code, 0) << together;
    EXPECT_EQ(runs_.Digest(name + "-i"), runs_.Digest(name));
    // What they refuse is said once.
    const Ended refused = runs_.Program(
        "holdfast",
        {"launch", "-n", "3", "--", HOLDFAST_BIN_DIR "/ckpt-reshard",
         runs_.Path(name), "--tp", "64", "--pp", "1", "--dp", "5", "--out",
         runs_.Path(name + "-x")});
    EXPECT_EQ(refused.code, 78) << refused;
    const size_t first = refused.err.find("ckpt-reshard: ");
    EXPECT_NE(first, std::string::npos) << refused;
    EXPECT_EQ(refused.err.rfind("ckpt-reshard: "), first) << refused;
    begun.words = {"--init-from", runs_.Path(name + "-i")};
    runs_.TrainToTheEnd(name + "-b", begun);
    runs_.TrainToTheEnd(name, {.ranks = 2, .pp = 2, .sets = {tied}});
    runs_.ExpectSameSteps(name, name + "-b", 5);
    EXPECT_EQ(runs_.Digest(name + "-b"), runs_.Digest(name));
  }
}

// All ranks go back together, whichever of them found the damage.
TEST_F(LayoutsTest, AllRanksStepBackFromADamagedCheckpoint) {
  runs_.TrainToTheEnd("run", {.ranks = 3});
  const std::string digest = runs_.Digest("run");
  FlipByte(runs_.Shard("run", 8, 2), 70000);
  const Ended ended = runs_.TrainToTheEnd("run", {.ranks = 4, .pp = 2});
  EXPECT_THAT(ended.err, HasSubstr("stepped over step-000000008.i0001.a02"));
  EXPECT_THAT(ended.err, HasSubstr("shard-00002.hf"));
  EXPECT_EQ(runs_.Digest("run"), digest);
  const nlohmann::json listed = runs_.Ckptctl({"ls", runs_.Path("run")});
  bool superseded = false;
  for (const auto& entry : listed["checkpoints"]) {
    superseded |= entry["id"] == "step-000000008.i0001.a02" &&
                  entry["state"] == "superseded";
  }
  EXPECT_TRUE(superseded) << listed;
}

// Every rank says the same: it is said once.
TEST_F(LayoutsTest, WhatAllRanksFindWrongIsSaidOnceWithTheRanksCode) {
  const Ended ended =
      runs_.Train("run", {.ranks = 4, .sets = {"model.haeds=4"}});
  EXPECT_EQ(ended.code, 78) << ended;
  const std::string words = "unknown key";
  const size_t first = ended.err.find(words);
  ASSERT_NE(first, std::string::npos) << ended;
  EXPECT_EQ(ended.err.find(words, first + 1), std::string::npos) << ended;
}

}  // namespace
}  // namespace holdfast::tests
