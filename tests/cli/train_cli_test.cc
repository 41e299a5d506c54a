// `holdfast train` on one rank, as scripts see it: what is refused before
// anything starts, with which code and which words, and how a run is continued,
// rewound, or begun from another.

#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/runs/small_runs.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class TrainCliTest : public testing::Test {
 protected:
  // Ends with `code` and says `words`.
  Ended ExpectRefused(const std::string& run, const JobSpec& spec, int code,
                      const std::vector<std::string>& words) {
    const Ended ended = runs_.Train(run, spec);
    EXPECT_EQ(ended.code, code) << ended;
    for (const std::string& word : words) {
      EXPECT_THAT(ended.err, HasSubstr(word));
    }
    return ended;
  }
  // Every entry of `ckptctl ls`: id -> state.
  std::map<std::string, std::string> States(const std::string& run) const {
    std::map<std::string, std::string> states;
    const nlohmann::json listed = runs_.Ckptctl({"ls", runs_.Path(run)});
    for (const auto& entry : listed["checkpoints"]) {
      states[entry["id"]] = entry["state"];
    }
    return states;
  }
  bool Exists(const std::string& name) const {
    return std::filesystem::exists(runs_.Path(name));
  }

  const SmallRuns runs_;
};

// ---------------------------------------------------------------- the start

TEST_F(TrainCliTest, WrongUsageIs64) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"train"},
           {"train", "--config", "x.toml"},
           {"train", "--config", "x.toml", "--run", "r", "--init-only", "all"},
           {"train", "--config", "x.toml", "--run", "r", "--resume",
            "sometimes"},
           {"launch", "-n", "0", "--", "train"},
           {"launch", "-n", "2"},
           {"drill", "unplug", "--run", "r", "--config", "x.toml"},
           {"drill", "--run", "r", "--config", "x.toml"}}) {
    const Ended ended = runs_.Program("holdfast", arguments);
    EXPECT_EQ(ended.code, 64) << ended;
    EXPECT_THAT(ended.err, Not(IsEmpty()));
  }
}

TEST_F(TrainCliTest, AWrongConfigurationIs78WithItsLineBeforeAnythingIsMade) {
  struct Case {
    std::string from, to;
    std::vector<std::string> words;
  };
  const std::string right = FileText(runs_.config());
  for (const Case& wrong : std::vector<Case>{
           {"heads = 4",
            "haeds = 4",
            {"small.toml:8: unknown key", "did you mean 'model.heads'?"}},
           {"heads = 4", "heads = \"four\"", {"small.toml:8", "integer"}},
           {"heads = 4", "", {"model.heads"}},
           {"heads = 4", "heads = 5", {"48", "5"}},
           {"tied = true", "tied = true\ntied = false", {"small.toml:14"}},
           {"[train]", "[train", {"small.toml:19"}},
           {"micro_seqs = 1", "micro_seqs = 3", {"micro_seqs"}}}) {
    std::string text = right;
    text.replace(text.find(wrong.from), wrong.from.size(), wrong.to);
    runs_.WriteFile("small.toml", text);
    ExpectRefused("r", {}, 78, wrong.words);
    EXPECT_FALSE(Exists("r")) << wrong.to;
  }
  std::filesystem::remove(runs_.config());
  ExpectRefused("r", {}, 78, {"small.toml: No such file"});
  EXPECT_FALSE(Exists("r"));
}

TEST_F(TrainCliTest, ALayoutThatDoesNotFitIs78WithTheNumbers) {
  ExpectRefused("r", {.tp = 2}, 78, {"1 rank", "2"});
  ExpectRefused("r", {.sets = {"parallel.stages=[2,1]"}}, 78, {"stages"});
  ExpectRefused("r", {.sets = {"parallel.cp=2"}}, 78, {"context parallelism"});
  EXPECT_FALSE(Exists("r"));
}

// On a machine with a GPU the run trains there; here it says why it cannot.
TEST_F(TrainCliTest, AGpuThatIsNotThereIs78WithOneLineBeforeAnythingIsMade) {
  const Ended ended =
      runs_.Train("r", {.sets = {"device=cuda", "train.steps=1"}});
  if (ended.code == 0) {
    EXPECT_TRUE(Exists("r"));
  } else {
    EXPECT_EQ(ended.code, 78) << ended;
    EXPECT_THAT(ended.err, HasSubstr("use device = cpu"));
    EXPECT_FALSE(Exists("r"));
  }
  // Without the plug-in it does not come to that question.
  setenv("HOLDFAST_PLUGIN_DIR", "/nowhere", 1);
  ExpectRefused("q", {.sets = {"device=cuda"}}, 78,
                {"libholdfast_cuda.so", "/nowhere", "use device = cpu"});
  unsetenv("HOLDFAST_PLUGIN_DIR");
  EXPECT_FALSE(Exists("q"));
}

TEST_F(TrainCliTest, DataThatCannotBeUsedIs78BeforeAnythingIsMade) {
  const std::string bin = runs_.Path("text.bin");
  const std::string idx = runs_.Path("text.idx");
  const std::string bin_text = FileText(bin);
  const std::string idx_text = FileText(idx);

  std::filesystem::resize_file(bin, bin_text.size() - 7);
  ExpectRefused("r", {}, 78, {"text."});
  std::filesystem::remove(bin);
  ExpectRefused("r", {}, 78, {"text.bin", "No such file"});
  runs_.WriteFile("text.bin", bin_text);

  std::filesystem::resize_file(idx, idx_text.size() - 3);
  ExpectRefused("r", {}, 78, {"text.idx"});
  std::filesystem::resize_file(idx, 5);
  ExpectRefused("r", {}, 78, {"text.idx"});
  std::filesystem::remove(idx);
  ExpectRefused("r", {}, 78, {"text.idx", "No such file"});
  runs_.WriteFile("text.idx", idx_text);

  ExpectRefused("r", {.sets = {"model.vocab=100"}}, 78,
                {"text.bin", "model.vocab = 100", "vocabulary"});
  EXPECT_FALSE(Exists("r"));
  EXPECT_EQ(runs_.Train("r", {.sets = {"train.steps=1"}}).code, 0);
}

TEST_F(TrainCliTest, ARunDirectoryThatCannotBeWrittenIs74AndNamed) {
  if (geteuid() != 0) {
    std::filesystem::create_directory(runs_.Path("ro"));
    std::filesystem::permissions(runs_.Path("ro"),
                                 std::filesystem::perms::owner_read |
                                     std::filesystem::perms::owner_exec);
    ExpectRefused("ro/r", {}, 74, {"ro/r", "ermission denied"});
    return;
  }
  // Root may write anywhere but on a file system that is mounted read-only.
  std::filesystem::create_directory(runs_.Path("ro"));
  if (mount("none", runs_.Path("ro").c_str(), "tmpfs", MS_RDONLY, nullptr) !=
      0) {
    GTEST_SKIP() << "root may write everywhere, and this container forbids "
                    "mounting something read-only";
  }
  ExpectRefused("ro/r", {}, 74, {"ro/r", "Read-only file system"});
  EXPECT_EQ(umount(runs_.Path("ro").c_str()), 0);
}

TEST_F(TrainCliTest, AFileInPlaceOfTheRunDirectoryIsSaid) {
  runs_.WriteFile("r", "not a directory");
  ExpectRefused("r", {}, 74, {"/r"});
}

TEST_F(TrainCliTest, AFaultThatIsMisspeltIsRefused) {
  ExpectRefused("r", {.fault = "op=wirte,do=kill"}, 78, {"op=wirte"});
}

// ------------------------------------------------- the same run as before?

TEST_F(TrainCliTest, AnotherModelSeedDataOrNumericsIs78UnlessAccepted) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  runs_.MakeData("other", 99);
  struct Case {
    std::vector<std::string> sets;
    std::string name;   // of what differs
    std::string group;  // that can be accepted; "" when nothing helps
  };
  const std::string data = "data.paths=[\"" + runs_.Path("other") + "\"]";
  for (const Case& other : std::vector<Case>{
           {{"train.seed=8"}, "train.seed", "seed"},
           {{data}, "data.fingerprint", "data"},
           {{"optim.lr=1e-3"}, "optim.lr", "optim"},
           {{"batch.global_seqs=16"}, "batch.global_seqs", "batch"},
           {{"numerics.virtual_dp=4"}, "numerics.virtual_dp", "numerics"},
           {{"model.rope_theta=500000"}, "model.rope_theta", "model"},
           {{"model.layers=2"}, "", ""},
           {{"model.tied=false"}, "", ""},
           {{"model.ffn=128"}, "", ""}}) {
    JobSpec spec{.sets = other.sets};
    spec.sets.push_back("train.steps=5");
    const Ended refused = ExpectRefused(
        "r", spec, 78,
        {other.name, other.group.empty() ? "" : "--accept-change"});
    EXPECT_THAT(runs_.StatesOfSteps("r"), ElementsAre(Pair(4, "committed")));
    if (other.group.empty()) continue;
    runs_.CopyRun("r", "copy");
    spec.words = {"--accept-change=" + other.group};
    EXPECT_EQ(runs_.Train("copy", spec).code, 0) << other.name;
    EXPECT_EQ(runs_.LastStep("copy"), 5);
  }
  // What does not change what is computed is free.
  EXPECT_EQ(runs_
                .Train("r", {.sets = {"train.steps=5", "checkpoint.interval=2",
                                      "data.paths=[\"text\"]"}})
                .code,
            78)
      << "a path that is not there";
  ExpectRefused("r", {.words = {"--accept-change=wheels"}}, 78, {"wheels"});
  runs_.TrainToTheEnd("r",
                      {.sets = {"train.steps=5", "checkpoint.interval=2"}});
}

TEST_F(TrainCliTest, MovedDataOfTheSameBytesIsTheSameData) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  for (const char* suffix : {".bin", ".idx"}) {
    std::filesystem::rename(runs_.Path("text") + suffix,
                            runs_.Path("moved") + suffix);
  }
  runs_.TrainToTheEnd(
      "r", {.sets = {"train.steps=5",
                     "data.paths=[\"" + runs_.Path("moved") + "\"]"}});
}

// ---------------------------------------------------- which checkpoint?

TEST_F(TrainCliTest, AFinishedRunThatIsStartedAgainChangesNothing) {
  runs_.TrainToTheEnd("r", {});
  const std::string digest = runs_.Digest("r");
  const Ended again = runs_.TrainToTheEnd("r", {});
  EXPECT_THAT(again.err, HasSubstr("all 8 steps are done"));
  EXPECT_EQ(runs_.Digest("r"), digest);
  EXPECT_EQ(runs_.AllMetrics("r").size(), 8u) << "a step was made again";
}

TEST_F(TrainCliTest, CheckpointsThatAreGoneAre66AndNeverAFreshStart) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  std::filesystem::rename(runs_.Path("r/checkpoints"), runs_.Path("away"));
  ExpectRefused("r", {}, 66, {"checkpoints", "--resume=never"});
  // The mount point is there, and empty.
  std::filesystem::create_directory(runs_.Path("r/checkpoints"));
  ExpectRefused("r", {}, 66, {"checkpoints", "--resume=never"});
  EXPECT_TRUE(std::filesystem::is_empty(runs_.Path("r/checkpoints")))
      << "something was written into the mount point";
  // Mounted again, all is well.
  std::filesystem::remove(runs_.Path("r/checkpoints"));
  std::filesystem::rename(runs_.Path("away"), runs_.Path("r/checkpoints"));
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=6"}});
  EXPECT_THAT(runs_.AllMetrics("r"), SizeIs(6));
}

TEST_F(TrainCliTest, CheckpointsRemovedOneByOneAre66Too) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  for (const auto& entry :
       std::filesystem::directory_iterator(runs_.Path("r/checkpoints"))) {
    if (entry.is_directory()) std::filesystem::remove_all(entry.path());
  }
  ExpectRefused("r", {}, 66, {"saved", "--resume=never"});
}

TEST_F(TrainCliTest, ResumeNeverStartsFreshAndSupersedesWhatWasThere) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  const std::string digest = runs_.Digest("r");
  const Ended ended = runs_.TrainToTheEnd(
      "r",
      {.sets = {"train.steps=4", "train.seed=9"}, .words = {"--resume=never"}});
  EXPECT_THAT(ended.err, HasSubstr("fresh start"));
  EXPECT_NE(runs_.Digest("r"), digest);
  const nlohmann::json listed = runs_.Ckptctl({"ls", runs_.Path("r")});
  EXPECT_EQ(listed["checkpoints"][0]["state"], "committed");
  EXPECT_EQ(listed["checkpoints"][1]["state"], "superseded");
  EXPECT_THAT(listed["checkpoints"][1]["reason"].get<std::string>(),
              HasSubstr("--resume=never"));
}

TEST_F(TrainCliTest, ResumeRequiredWithoutACheckpointIs66) {
  ExpectRefused("r", {.words = {"--resume=required"}}, 66,
                {"--resume=required"});
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  runs_.TrainToTheEnd("r", {.words = {"--resume=required"}});
}

TEST_F(TrainCliTest, ResumeAtAStepRewindsAndLsTellsWhatItSteppedOver) {
  for (const char* steps :
       {"train.steps=2", "train.steps=4", "train.steps=6", "train.steps=8"}) {
    runs_.TrainToTheEnd("r", {.sets = {steps, "checkpoint.interval=0"}});
  }
  const std::string digest = runs_.Digest("r");
  const std::vector<trainer::MetricsLine> before = runs_.Metrics("r");
  const Ended rewound = runs_.TrainToTheEnd(
      "r", {.sets = {"train.steps=6", "checkpoint.interval=0"},
            .words = {"--resume=4"}});
  EXPECT_THAT(rewound.err, HasSubstr("resumed step-000000004.i0002.a01"));
  EXPECT_THAT(rewound.err, HasSubstr("stepped over step-000000008.i0004.a01"));
  EXPECT_THAT(States("r"), UnorderedElementsAre(
                               Pair("step-000000002.i0001.a01", "committed"),
                               Pair("step-000000004.i0002.a01", "committed"),
                               Pair("step-000000006.i0003.a01", "superseded"),
                               Pair("step-000000008.i0004.a01", "superseded"),
                               Pair("step-000000006.i0005.a01", "committed")));
  EXPECT_EQ(runs_.Ckptctl({"ls", runs_.Path("r")})["newest"],
            "step-000000006.i0005.a01");
  // The new line is the old one's twin, and goes on from where it ends.
  runs_.TrainToTheEnd("r", {});
  EXPECT_EQ(runs_.Digest("r"), digest);
  const std::vector<trainer::MetricsLine> after = runs_.Metrics("r");
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].loss_bits, before[i].loss_bits) << after[i].step;
  }
  ExpectRefused("r", {.words = {"--resume=1"}}, 66,
                {"no checkpoint at or below step 1"});
}

// ------------------------------------------------------------- damage

TEST_F(TrainCliTest, ADamagedCheckpointIsSteppedOverLoudly) {
  runs_.TrainToTheEnd("r", {});
  const std::string digest = runs_.Digest("r");
  FlipByte(runs_.Shard("r", 8, 0), 70000);
  const Ended ended = runs_.TrainToTheEnd("r", {});
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("stepped over step-000000008.i0001"),
                    HasSubstr("damaged"), HasSubstr("shard-00000.hf")));
  EXPECT_THAT(States("r"), UnorderedElementsAre(
                               Pair("step-000000004.i0001.a01", "committed"),
                               Pair("step-000000008.i0001.a02", "superseded"),
                               Pair("step-000000008.i0002.a01", "committed")));
  EXPECT_EQ(runs_.Digest("r"), digest);
  EXPECT_THAT(runs_.AllMetrics("r"), SizeIs(12)) << "steps 5 to 8 once more";
}

TEST_F(TrainCliTest, ATruncatedOrMissingShardIsSteppedOverToo) {
  for (const bool missing : {false, true}) {
    const std::string run = missing ? "missing" : "truncated";
    runs_.TrainToTheEnd(run, {});
    const std::string digest = runs_.Digest(run);
    const std::string shard = runs_.Shard(run, 8, 0);
    if (missing) {
      std::filesystem::remove(shard);
    } else {
      std::filesystem::resize_file(shard,
                                   std::filesystem::file_size(shard) / 2);
    }
    const Ended ended = runs_.TrainToTheEnd(run, {});
    EXPECT_THAT(ended.err, HasSubstr("stepped over step-000000008.i0001"));
    EXPECT_EQ(runs_.Digest(run), digest);
  }
}

TEST_F(TrainCliTest, ADamagedManifestIsSteppedOverToo) {
  runs_.TrainToTheEnd("r", {});
  const std::string digest = runs_.Digest("r");
  FlipByte(runs_.Path("r/checkpoints/step-000000008.i0001.a02/MANIFEST"), 100);
  const Ended ended = runs_.TrainToTheEnd("r", {});
  EXPECT_THAT(ended.err, AllOf(HasSubstr("stepped over step-000000008.i0001"),
                               HasSubstr("damaged")));
  EXPECT_EQ(runs_.Digest("r"), digest);
  EXPECT_THAT(runs_.AllMetrics("r"), SizeIs(12));
}

TEST_F(TrainCliTest, WhereAllAreDamagedNothingIsStartedAndNothingIsChanged) {
  runs_.TrainToTheEnd("r", {});
  FlipByte(runs_.Shard("r", 8, 0), 70000);
  FlipByte(runs_.Shard("r", 4, 0), 70000);
  ExpectRefused("r", {}, 66, {"damaged", "--resume=never"});
  EXPECT_THAT(runs_.AllMetrics("r"), SizeIs(8));
  runs_.TrainToTheEnd("r", {.words = {"--resume=never"}});
}

// ------------------------------------------------------- from another run

TEST_F(TrainCliTest, InitFromContinuesAnotherRunInANewOne) {
  runs_.TrainToTheEnd("a", {});
  const Ended ended = runs_.TrainToTheEnd(
      "b", {.words = {"--init-from", runs_.Path("a") + "@4"}});
  EXPECT_THAT(ended.err, HasSubstr("initialised from step-000000004"));
  runs_.ExpectSameSteps("a", "b", 5);
  EXPECT_EQ(runs_.Metrics("b").front().step, 5);
  EXPECT_EQ(runs_.Digest("b"), runs_.Digest("a"));
  // Its own checkpoints come first from now on.
  runs_.TrainToTheEnd("b", {.sets = {"train.steps=9"},
                            .words = {"--init-from", runs_.Path("a") + "@4"}});
  EXPECT_EQ(runs_.AllMetrics("b").back().step, 9);
  EXPECT_EQ(runs_.AllMetrics("b").size(), 5u);
}

TEST_F(TrainCliTest, InitFromACheckpointsOwnDirectory) {
  runs_.TrainToTheEnd("a", {.sets = {"train.steps=4"}});
  std::filesystem::copy(runs_.Path("a/checkpoints/step-000000004.i0001.a01"),
                        runs_.Path("taken"),
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(runs_.Path("a"));
  runs_.TrainToTheEnd("b", {.words = {"--init-from", runs_.Path("taken")}});
  EXPECT_EQ(runs_.Metrics("b").front().step, 5);
}

TEST_F(TrainCliTest, InitOnlyWeightsTakesWeightsAndStartsAtStepOne) {
  runs_.TrainToTheEnd("a", {});
  // Another seed, another data set: a fine-tuning.
  const std::string data =
      "data.paths=[\"" + runs_.MakeData("other", 99) + "\"]";
  runs_.TrainToTheEnd(
      "b", {.sets = {data, "train.seed=3", "optim.lr=1e-4"},
            .words = {"--init-from", runs_.Path("a"), "--init-only=weights"}});
  const auto lines = runs_.Metrics("b");
  ASSERT_THAT(lines, SizeIs(8));
  EXPECT_EQ(lines.front().step, 1);
  runs_.TrainToTheEnd("fresh",
                      {.sets = {data, "train.seed=3", "optim.lr=1e-4"}});
  EXPECT_LT(lines.front().loss, runs_.Metrics("fresh").front().loss)
      << "the weights have learned nothing";
  // Started again the same way it is a run like any other.
  ExpectRefused(
      "b",
      {.sets = {data, "train.seed=3", "optim.lr=5e-4"},
       .words = {"--init-from", runs_.Path("a"), "--init-only=weights"}},
      78, {"optim.lr"});
}

TEST_F(TrainCliTest, InitFromAnotherModelOrFromNothingIsRefused) {
  runs_.TrainToTheEnd("a", {.sets = {"train.steps=4"}});
  ExpectRefused(
      "b",
      {.sets = {"optim.lr=1e-3"}, .words = {"--init-from", runs_.Path("a")}},
      78, {"optim.lr", "--accept-change"});
  ExpectRefused(
      "b",
      {.sets = {"model.ffn=128"},
       .words = {"--init-from", runs_.Path("a"), "--init-only=weights"}},
      78, {"mlp"});
  ExpectRefused("b", {.words = {"--init-from", runs_.Path("none")}}, 66,
                {"66: --init-from: ", "none is not a directory"});
  ExpectRefused("b", {.words = {"--init-from", runs_.Path("a") + "@3"}}, 66,
                {"3"});
  // A refused start leaves the new run fresh.
  runs_.TrainToTheEnd("b", {.words = {"--init-from", runs_.Path("a")}});
}

// --------------------------------------------------------- no progress

TEST_F(TrainCliTest, TheFourthStartThatGainsNothingIs76) {
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=4"}});
  // Dies in the first save that it makes, each time.
  const JobSpec dying{.sets = {"checkpoint.interval=2"},
                      .fault = "match=step-000000006,op=sync,do=kill"};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(runs_.Train("r", dying).code, 128 + 9) << i;
  }
  ExpectRefused("r", dying, 76, {"3 starts", "--accept-change=no-progress"});
  EXPECT_EQ(runs_.Status("r").value("exit_code", 0), 76);
  ExpectRefused("r", {}, 76, {"step 4"});
  runs_.TrainToTheEnd("r", {.words = {"--accept-change=no-progress"}});
  runs_.TrainToTheEnd("r", {.sets = {"train.steps=9"}});
}

TEST_F(TrainCliTest, StatusAndJournalTellHowAStartEnded) {
  runs_.TrainToTheEnd("r", {});
  EXPECT_EQ(runs_.Status("r")["exit_code"], 0);
  EXPECT_EQ(runs_.Status("r")["state"], "finished");
  EXPECT_EQ(runs_.Status("r")["step"], 8);
  const auto stops = runs_.Journal("r", "stop");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].facts.at("exit_code").integer, 0);
  EXPECT_EQ(stops[0].facts.at("step").integer, 8);
  EXPECT_THAT(FileText(runs_.Path("r/incarnations/001/config.toml")),
              HasSubstr("layers = 4"));
  EXPECT_THAT(FileText(runs_.Path("r/incarnations/001/logs/rank-00000.log")),
              HasSubstr("all 8 steps are done"));
}

}  // namespace
}  // namespace holdfast::tests
