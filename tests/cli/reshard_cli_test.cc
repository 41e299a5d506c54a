// `ckpt-reshard` and `ckptctl reshard` as scripts see them: exit codes, keys of
// the JSON, what is refused and in which words.

#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/runs/small_runs.h"

namespace holdfast::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReshardCliTest : public testing::Test {
 protected:
  static nlohmann::json JsonOf(const Ended& ended) {
    return nlohmann::json::parse(ended.out, nullptr,
                                 /*allow_exceptions=*/false);
  }
  Ended Reshard(const std::string& from, const std::string& to, int tp, int pp,
                int dp, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {
        runs_.Path(from),   "--tp", std::to_string(tp), "--pp",
        std::to_string(pp), "--dp", std::to_string(dp), "--out",
        runs_.Path(to)};
    words.insert(words.end(), more.begin(), more.end());
    return runs_.Program("ckpt-reshard", words);
  }

  const SmallRuns runs_;
};

TEST_F(ReshardCliTest, UsageIsOnStdoutAndMistakesAre64) {
  for (const std::vector<std::string>& help :
       std::vector<std::vector<std::string>>{{"--help"}}) {
    const Ended ended = runs_.Program("ckpt-reshard", help);
    EXPECT_EQ(ended.code, 0);
    EXPECT_THAT(ended.out, HasSubstr("--memory-limit"));
    EXPECT_THAT(ended.err, IsEmpty());
  }
  const Ended same = runs_.Program("ckptctl", {"reshard", "--help"});
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.out, HasSubstr("--memory-limit"));
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{
           {},
           {"run", "--tp", "1", "--pp", "1", "--dp", "1"},
           {"run", "--tp", "0", "--pp", "1", "--dp", "1", "--out", "x"},
           {"run", "--tp", "1", "--pp", "1", "--dp", "1", "--out", "x",
            "--codec", "zstd:99"},
           {"run", "--tp", "1", "--pp", "1", "--dp", "1", "--out", "x",
            "--memory-limit", "much"}}) {
    EXPECT_EQ(runs_.Program("ckpt-reshard", words).code, 64);
  }
}

TEST_F(ReshardCliTest, ACheckpointIsRewrittenPlannedRefusedAndFoundAgain) {
  runs_.TrainToTheEnd("run", {.sets = {"train.steps=2"}});

  // --plan-only says how much, and makes nothing.
  const Ended planned =
      Reshard("run", "out", 2, 2, 3, {"--plan-only", "--json"});
  ASSERT_EQ(planned.code, 0) << planned;
  const nlohmann::json plan = JsonOf(planned);
  EXPECT_EQ(plan["layout"], "tp2-pp2-dp3");
  EXPECT_EQ(plan["files"], 12);
  EXPECT_GT(plan["reads"], 0);
  EXPECT_GT(plan["longest_rank_bytes"], 0);
  EXPECT_FALSE(fs::exists(runs_.Path("out")));

  const Ended made = Reshard("run", "out", 2, 2, 3, {"--json"});
  ASSERT_EQ(made.code, 0) << made;
  const nlohmann::json json = JsonOf(made);
  EXPECT_EQ(json["equal"], true);
  EXPECT_EQ(json["digest_after"], runs_.Digest("run"));
  EXPECT_EQ(json["bytes"], plan["bytes"]);
  EXPECT_EQ(json["source"]["step"], 2);
  EXPECT_EQ(runs_.Digest("out"), runs_.Digest("run"));
  EXPECT_EQ(runs_.Ckptctl({"verify", runs_.Path("out"), "--hash"})["ok"], true);
  EXPECT_EQ(
      runs_.Program("ckptctl", {"diff", runs_.Path("run"), runs_.Path("out@2")})
          .code,
      0);

  // Again: it is there. In words, too.
  const Ended again = Reshard("run", "out", 2, 2, 3);
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_THAT(again.out, HasSubstr("was verified"));
  EXPECT_THAT(again.out, HasSubstr("equal"));

  // Refusals leave everything as it is.
  const Ended other = Reshard("run", "out", 1, 1, 3);
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.err, HasSubstr("another conversion"));
  fs::create_directory(runs_.Path("foreign"));
  std::ofstream(runs_.Path("foreign/notes")) << "mine";
  const Ended foreign = Reshard("run", "foreign", 1, 1, 1);
  EXPECT_EQ(foreign.code, 78);
  EXPECT_THAT(foreign.err, HasSubstr("notes"));
  EXPECT_EQ(Reshard("run", "run", 1, 1, 1).code, 78);
  EXPECT_EQ(Reshard("run", "no/such/parent", 1, 1, 1).code, 78);
  // Nothing appears in what is only read, by whatever name.
  fs::create_directory_symlink(runs_.Path("run"), runs_.Path("alias"));
  for (const std::string inside :
       {"run/x", "run/checkpoints/x", "alias/x", "other/../run/x"}) {
    const Ended refused = Reshard("run", inside, 1, 1, 1);
    EXPECT_EQ(refused.code, 78) << inside;
    EXPECT_THAT(refused.err, HasSubstr("only read")) << inside;
  }
  EXPECT_FALSE(fs::exists(runs_.Path("run/x")));
  EXPECT_FALSE(fs::exists(runs_.Path("run/checkpoints/x")));
  const Ended uncut = Reshard("run", "x", 64, 1, 1);
  EXPECT_EQ(uncut.code, 78);
  EXPECT_THAT(uncut.err, HasSubstr("64"));
  EXPECT_EQ(Reshard("nothing", "x", 1, 1, 1).code, 66);
  EXPECT_EQ(Reshard("run@7", "x", 1, 1, 1).code, 66);
  const Ended little =
      Reshard("run", "x", 1, 1, 1, {"--memory-limit", "16MiB"});
  EXPECT_EQ(little.code, 78);
  EXPECT_THAT(little.err, HasSubstr("one thread needs"));
  EXPECT_FALSE(fs::exists(runs_.Path("x")));

  // Damage in the source is 65, and no result of it is offered.
  FlipByte(runs_.Shard("run", 2, 0), 70000);
  const Ended damaged = Reshard("run", "y", 2, 1, 1, {"--codec", "zstd"});
  EXPECT_EQ(damaged.code, 65) << damaged;
  EXPECT_THAT(damaged.err, HasSubstr("crc32c"));
  EXPECT_NE(runs_.Program("ckptctl", {"show", runs_.Path("y")}).code, 0);
}

// A disk that takes a moment for each write, so that there is time to ask.
TEST_F(ReshardCliTest, CtrlCLeavesWhatTheNextCallGoesOnWith) {
  runs_.TrainToTheEnd("run", {.sets = {"train.steps=1"}});
  const std::string command =
      "HOLDFAST_FAULT=op=write,do=delay,ms=300 timeout --preserve-status "
      "-s INT 0.2 " HOLDFAST_BIN_DIR "/ckpt-reshard " +
      runs_.Path("run") + " --tp 1 --pp 1 --dp 2 --threads 1 --out " +
      runs_.Path("out") + " >" + runs_.Path("said") + " 2>&1";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT) << FileText(runs_.Path("said"));
  EXPECT_THAT(FileText(runs_.Path("said")), HasSubstr("the same command"));
  const Ended shown = runs_.Program("ckptctl", {"show", runs_.Path("out")});
  EXPECT_EQ(shown.code, 66);
  EXPECT_THAT(shown.err,
              HasSubstr("conversion that makes it has not finished"));
  // A job does not begin from nothing in half a result.
  const Ended trained = runs_.Train("out", {});
  EXPECT_EQ(trained.code, 66);
  EXPECT_THAT(trained.out + trained.err,
              HasSubstr("give the command that makes it (ckpt-reshard"));
  EXPECT_EQ(Reshard("run", "out", 1, 1, 2).code, 0);
  EXPECT_EQ(runs_.Digest("out"), runs_.Digest("run"));
}

TEST_F(ReshardCliTest, MoreRanksThanBlocksUnevenStagesAndBareDirectories) {
  runs_.TrainToTheEnd("run", {.sets = {"train.steps=1"}});
  const std::string digest = runs_.Digest("run");
  ASSERT_EQ(Reshard("run", "many", 1, 1, 64).code, 0);
  EXPECT_EQ(runs_.Digest("many"), digest);
  const nlohmann::json shown = runs_.Ckptctl({"show", runs_.Path("run")});
  ASSERT_EQ(Reshard("many", "bare", 2, 2, 1,
                    {"--stages", "1,3", "--bare", "--codec", "zstd:1",
                     "--memory-limit", "128MiB"})
                .code,
            0);
  EXPECT_TRUE(fs::exists(runs_.Path("bare/MANIFEST")));
  EXPECT_EQ(runs_.Digest("bare"), digest);
  EXPECT_EQ(Reshard("run", "x", 1, 2, 1, {"--stages", "1,4"}).code, 78);
}

}  // namespace
}  // namespace holdfast::tests
