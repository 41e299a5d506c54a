// What scripts rely on of `ckptctl`: exit codes, the keys of its JSON, words of
// its messages. The runs are small and real, written by
// tests/support/saved_run.

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/ckptctl_fixture.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CkptctlCliTest, HelpAndVersionGoToStdoutWithZero) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"ls", "--help"},
                                             {"show", "-h"},
                                             {"verify", "--help"},
                                             {"diff", "--help"},
                                             {"prune", "--help"},
                                             {"--version"}}) {
    const Outcome outcome = Ckptctl(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr("ckptctl")) << outcome;
    EXPECT_THAT(outcome.err, IsEmpty());
  }
  EXPECT_THAT(Ckptctl({"--help"}).out,
              AllOf(HasSubstr("66 no checkpoint"), HasSubstr("Examples:")));
}

TEST(CkptctlCliTest, WrongUsageIs64AndSaysWhereToLook) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"list"},
                                             {"ls"},
                                             {"show"},
                                             {"diff", "a"},
                                             {"ls", "a", "--wat"},
                                             {"verify", "a", "--readers=0"}}) {
    const Outcome outcome = Ckptctl(arguments);
    EXPECT_EQ(outcome.code, 64) << outcome;
    EXPECT_THAT(outcome.err, HasSubstr("--help'.")) << outcome;
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST_F(CkptctlTest, WhereThereIsNoCheckpointIs66) {
  std::filesystem::create_directories(folder_ / "empty");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"ls", folder_ / "nowhere"},
           {"ls", folder_ / "empty"},
           {"show", folder_ / "empty"},
           {"verify", run() + "@120"},
           {"show", DirOf(kAttempt)},
           {"show", run() + "@" + ToString(kAttempt)},
           {"diff", run(), run() + "@1"}}) {
    const Outcome outcome = Ckptctl(arguments);
    EXPECT_EQ(outcome.code, 66) << outcome;
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_THAT(Ckptctl({"show", run() + "@120"}).err,
              HasSubstr("it has steps 300, 200, 100"));
  EXPECT_THAT(Ckptctl({"show", run() + "@150"}).err,
              HasSubstr("step-000000150.i0001.a02 is superseded (rewind)"));
}

TEST_F(CkptctlTest, ANameThatNoCheckpointCanHaveIs64) {
  for (const std::string which : {"@foo", "@", "@-1", "@3x", "@step-3"}) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{
             {"show", run() + which},
             {"ls", run() + which},
             {"verify", run() + which},
             {"prune", run() + which},
             {"diff", run(), run() + which},
             {"export", run() + which, "--to", "hf", "--out", run() + "/out"},
             {"reshard", run() + which, "--tp", "1", "--pp", "1", "--dp", "1",
              "--out", run() + "/out"}}) {
      const Outcome outcome = Ckptctl(words);
      EXPECT_EQ(outcome.code, 64) << words[0] << outcome;
      EXPECT_THAT(outcome.err, HasSubstr("such as @1200"));
    }
  }
}

TEST_F(CkptctlTest, APartOfARunIsAnsweredWithTheRun) {
  for (const char* part : {"/checkpoints", "/checkpoints/", "/owners"}) {
    for (const char* verb : {"ls", "show"}) {
      const Outcome outcome = Ckptctl({verb, run() + part});
      EXPECT_EQ(outcome.code, 66) << outcome;
      EXPECT_THAT(outcome.err, HasSubstr("is a part of the run " + run()));
    }
  }
}

TEST_F(CkptctlTest, APlaceThatCannotBeReadIsNamed) {
  EXPECT_EQ(Ckptctl({"show", run() + "@latest"}).code, 64);
  EXPECT_THAT(Ckptctl({"show", run() + "@latest"}).err,
              HasSubstr("expected a step"));
  EXPECT_EQ(Ckptctl({"ls", "s3://bucket/run"}).code, 64);
}

TEST_F(CkptctlTest, LsListsEverythingNewestFirstWithItsState) {
  const Json json = JsonOf(Ckptctl({"ls", run(), "--json"}));
  EXPECT_EQ(json["newest"], ToString(k300));
  EXPECT_EQ(json["sealed_by"], 2);
  std::vector<std::pair<int, std::string>> found;
  for (const Json& entry : json["checkpoints"]) {
    found.emplace_back(entry["step"], entry["state"]);
    EXPECT_EQ(entry["offered"], entry["state"] == "committed");
  }
  EXPECT_THAT(found, testing::ElementsAre(testing::Pair(300, "committed"),
                                          testing::Pair(200, "committed"),
                                          testing::Pair(100, "committed"),
                                          testing::Pair(400, "attempt"),
                                          testing::Pair(150, "superseded")));
  const Outcome text = Ckptctl({"ls", run()});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("newest\n"),
                    HasSubstr("never offered: no manifest: its save has not "
                              "finished"),
                    HasSubstr("never offered: rewind")));
}

TEST_F(CkptctlTest, ShowPrintsTheManifestOfAnyPlace) {
  for (const std::string& place :
       {run(), run() + "@300", run() + "@" + ToString(k300), DirOf(k300),
        DirOf(k300) + "/"}) {
    const Json json = JsonOf(Ckptctl({"show", place, "--json"}));
    EXPECT_EQ(json["step"], 300) << place;
    EXPECT_EQ(json["layout"], "tp2-pp1-dp2");
    EXPECT_EQ(json["attributes"]["step"], "300");
    EXPECT_EQ(json["items"].size(), layout_->items().size());
    EXPECT_FALSE(json.contains("digest"));
  }
  const Json superseded =
      JsonOf(Ckptctl({"show", run() + "@" + ToString(kRewound), "--json"}));
  EXPECT_EQ(superseded["state"], "superseded");
  EXPECT_THAT(Ckptctl({"show", run(), "--hash"}).out,
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("\ndigest ")));
}

TEST_F(CkptctlTest, ACheckpointCopiedAnywhereIsRead) {
  std::filesystem::copy(DirOf(k300), folder_ / "copy");
  EXPECT_EQ(Ckptctl({"verify", folder_ / "copy", "--hash"}).code, 0);
  EXPECT_EQ(Ckptctl({"diff", folder_ / "copy", run()}).code, 0);
}

TEST_F(CkptctlTest, LsOfOneCheckpointIsItsLine) {
  const Json named = JsonOf(Ckptctl({"ls", run() + "@200", "--json"}));
  EXPECT_EQ(named["id"], ToString(k200));
  EXPECT_EQ(named["state"], "committed");
  std::filesystem::copy(DirOf(k300), folder_ / "copy");
  const Json copied = JsonOf(Ckptctl({"ls", folder_ / "copy", "--json"}));
  EXPECT_EQ(copied["id"], ToString(k300));
  EXPECT_TRUE(copied["state"].is_null());
  EXPECT_THAT(Ckptctl({"ls", folder_ / "copy"}).out,
              HasSubstr("a directory by itself, of run "));
}

TEST_F(CkptctlTest, ShowOfATensorSaysWhereItIsStored) {
  const Json json =
      JsonOf(Ckptctl({"show", run(), "--tensor=model.norm.weight", "--json"}));
  ASSERT_EQ(json["items"].size(), 4);
  for (const Json& item : json["items"]) {
    EXPECT_EQ(item["name"], "model.norm.weight");
    int64_t elements = 0;
    for (const Json& chunk : item["chunks"]) {
      elements += chunk["count"].get<int64_t>();
    }
    EXPECT_EQ(elements, item["shape"][0]);
  }
  const Outcome wild = Ckptctl({"show", run(), "--tensor", "*.q_proj.weight"});
  EXPECT_EQ(wild.code, 0) << wild;
  EXPECT_THAT(
      wild.out,
      AllOf(HasSubstr("model.layers.1.self_attn.q_proj.weight"),
            HasSubstr("shard-00000.hf"), testing::Not(HasSubstr("k_proj"))));
  const Outcome none = Ckptctl({"show", run(), "--tensor", "wte"});
  EXPECT_EQ(none.code, 66) << none;
  EXPECT_THAT(none.err, HasSubstr("has no tensor 'wte'"));
}

TEST_F(CkptctlTest, ShowPrintsTheFilesAndTheConfiguration) {
  EXPECT_THAT(Ckptctl({"show", run()}).out,
              AllOf(HasSubstr("FILE"), HasSubstr("shard-00003.hf")));
  EXPECT_EQ(Ckptctl({"show", run(), "--config"}).code, 66);
  ckpt::PosixOptions options;
  options.root = run();
  auto storage = ckpt::OpenPosixStorage(options);
  Check(storage.status());
  CheckpointSpec spec = Spec({500, 2, 4}, 3);
  spec.attributes[".config"] = "[model]\nlayers = 2\x1b[2J\n";
  Check(WriteCheckpoint(**storage, *layout_, spec, AttemptDir(spec.id)));
  EXPECT_EQ(Ckptctl({"show", run(), "--config"}).out,
            "[model]\nlayers = 2\\x1b[2J\n");
}

TEST_F(CkptctlTest, VerifyComputesTheDigestThatShowPrints) {
  const Json shown = JsonOf(Ckptctl({"show", run(), "--hash", "--json"}));
  const Outcome outcome = Ckptctl({"verify", run(), "--hash", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  const Json verified = JsonOf(outcome);
  EXPECT_EQ(verified["ok"], true);
  EXPECT_EQ(verified["digest"], shown["digest"]);
  EXPECT_EQ(verified["bytes_read"], shown["bytes"]);
  EXPECT_THAT(Ckptctl({"verify", run()}).out, HasSubstr(": whole; "));
}

TEST_F(CkptctlTest, OnSeveralThreadsItFindsTheSame) {
  const auto verify = [this](int threads) {
    const Outcome outcome = Ckptctl({"verify", run(), "--hash", "--json",
                                     absl::StrFormat("--threads=%d", threads)});
    Json json = JsonOf(outcome);
    // Not what a sanitizer ends a program with, either.
    EXPECT_EQ(outcome.code, json["ok"] == true ? 0 : 65) << outcome;
    EXPECT_EQ(json["threads"], threads);
    for (const char* key : {"threads", "seconds", "bytes_per_s"}) {
      json.erase(key);
    }
    return json;
  };
  EXPECT_EQ(verify(1), verify(4));
  EXPECT_EQ(verify(7)["ok"], true);
  Flip(DirOf(k300) + "/shard-00001.hf", 5000);
  Flip(DirOf(k300) + "/shard-00003.hf", 6);
  const Json alone = verify(1);
  EXPECT_EQ(alone["damage"].size(), 2);
  EXPECT_EQ(alone, verify(3));
  // A file that is not there.
  std::filesystem::remove(DirOf(k300) + "/shard-00000.hf");
  EXPECT_EQ(verify(1), verify(4));
}

TEST_F(CkptctlTest, DamageIs65AndEveryPlaceIsNamed) {
  Flip(DirOf(k300) + "/shard-00001.hf", 5000);
  Flip(DirOf(k300) + "/shard-00003.hf", 6);
  const Outcome outcome = Ckptctl({"verify", run()});
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("shard-00001.hf, offset 4096 ("), HasSubstr("crc32c is"),
            HasSubstr("shard-00003.hf, offset 0: header: "),
            HasSubstr("NOT WHOLE")));
  const Json json = JsonOf(Ckptctl({"verify", run(), "--json"}));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["damage"].size(), 2);
  // The one before is whole.
  EXPECT_EQ(Ckptctl({"verify", run() + "@200"}).code, 0);
}

TEST_F(CkptctlTest, ADamagedManifestIs65ByItsPathAndNeverTheNewest) {
  Flip(DirOf(k300) + "/MANIFEST", 40);
  EXPECT_EQ(Ckptctl({"verify", DirOf(k300)}).code, 65);
  EXPECT_EQ(JsonOf(Ckptctl({"show", run(), "--json"}))["step"], 200);
  const Json json = JsonOf(Ckptctl({"ls", run(), "--json"}));
  EXPECT_EQ(json["checkpoints"][0]["state"], "damaged");
}

TEST_F(CkptctlTest, DiffComparesWhateverTheLayouts) {
  const std::string other_run = folder_ / "other";
  std::filesystem::create_directories(other_run);
  ckpt::PosixOptions options;
  options.root = other_run;
  auto storage = ckpt::OpenPosixStorage(options);
  Check(storage.status());
  const auto other = SmallLayout(1, 2, 3);
  CheckpointSpec spec = Spec(k300, 9);
  Check(WriteCheckpoint(**storage, *other, spec, "same"));
  // Equal bits and attributes; ".saved_by" is a fact of the save.
  const Outcome same = Ckptctl({"diff", run(), other_run + "/same"});
  EXPECT_EQ(same.code, 0) << same;
  EXPECT_THAT(same.out, HasSubstr("equal: "));

  spec.attributes["step"] = "301";
  Check(WriteCheckpoint(**storage, *other, spec, "renamed"));
  EXPECT_EQ(Ckptctl({"diff", run(), other_run + "/renamed"}).code, 1);
  EXPECT_EQ(
      Ckptctl({"diff", run(), other_run + "/renamed", "--no-attributes"}).code,
      0);

  spec.seed = 8;
  Check(WriteCheckpoint(**storage, *other, spec, "different"));
  const Outcome different =
      Ckptctl({"diff", run(), other_run + "/different", "--json"});
  EXPECT_EQ(different.code, 1);
  const Json json = JsonOf(different);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["items_different"], json["items_compared"]);
  EXPECT_GT(json["items"][0]["abs_max"], 0);
  EXPECT_EQ(json["attributes"]["step"]["b"], "301");
  const Json weights = JsonOf(Ckptctl(
      {"diff", run(), other_run + "/different", "--kind=weight", "--json"}));
  EXPECT_EQ(weights["items_compared"].get<size_t>() * 4,
            json["items_compared"].get<size_t>());
}

// What a file says cannot steer the terminal that shows it.
TEST_F(CkptctlTest, ControlCharactersOfAManifestAreSpelledOut) {
  ckpt::PosixOptions options;
  options.root = run();
  auto storage = ckpt::OpenPosixStorage(options);
  Check(storage.status());
  CheckpointSpec spec = Spec({500, 2, 4}, 3);
  spec.attributes["step\x1b[2J"] = "\x1b]0;title\x07";
  Check(WriteCheckpoint(**storage, *layout_, spec, AttemptDir(spec.id)));
  for (const Outcome& outcome :
       {Ckptctl({"show", run()}), Ckptctl({"ls", run()}),
        Ckptctl({"diff", run(), run() + "@200"})}) {
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos) << outcome.err;
  }
  EXPECT_THAT(Ckptctl({"show", run()}).out, HasSubstr("\\x1b]0;title\\x07"));
}

// A row of 4 TiB, of which there is not a byte: read piece by piece, it is
// damage like any other.
TEST_F(CkptctlTest, ARowThatNoMemoryHoldsIsNoReasonToDie) {
  ckpt::Manifest manifest;
  manifest.run_id = kTestRun;
  manifest.id = {600, 2, 5};
  manifest.commit_number = 3;
  manifest.world = 1;
  manifest.layout = "hostile";
  manifest.items = {{"w", "weight", ckpt::DType::kF32, {1, int64_t{1} << 40}}};
  manifest.item_digests.resize(1);
  ckpt::Chunk chunk;
  chunk.item = 0;
  chunk.part = ckpt::WholeBox(manifest.items[0].shape);
  chunk.count = int64_t{1} << 40;
  chunk.offset = 4096;
  chunk.bytes_stored = uint64_t{4} << 40;
  ckpt::ShardFile file;
  file.name = "shard-00000.hf";
  file.unit_count = 1 << 22;
  file.bytes =
      4096 + chunk.bytes_stored + ckpt::ShardIndexBytes(file.unit_count) + 4096;
  file.chunks = {chunk};
  manifest.files = {file};
  ckpt::PosixOptions options;
  options.root = run();
  auto storage = ckpt::OpenPosixStorage(options);
  Check(storage.status());
  Check(ckpt::Blocking(**storage).MakeDir(AttemptDir(manifest.id)));
  Check(WriteManifest(**storage, AttemptDir(manifest.id), manifest));
  const Outcome outcome =
      Ckptctl({"diff", DirOf(manifest.id), DirOf(manifest.id)});
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("shard-00000.hf"));
}

TEST_F(CkptctlTest, ASealThatIsGoneIsSaid) {
  std::filesystem::remove(run() + "/owners/i0002.seal");
  const Outcome outcome = Ckptctl({"ls", run()});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("owners/i0002.seal"), HasSubstr("is not there"),
                    HasSubstr("the newest seal is owners/i0001.seal")));
  EXPECT_THAT(JsonOf(Ckptctl({"ls", run(), "--json"}))["seal_lost"],
              HasSubstr("i0002.seal"));
}

TEST_F(CkptctlTest, AFullStdoutIs74) {
  EXPECT_EQ(RunProgram("ckptctl", {"ls", run()}, "/dev/full").code, 74);
}

TEST_F(CkptctlTest, ACodedCheckpointSaysSoAndIsReadAsAnyOther) {
  WriteCoded();
  const Outcome shown = Ckptctl({"show", run()});
  EXPECT_EQ(shown.code, 0) << shown;
  EXPECT_THAT(shown.out, HasSubstr("zstd, "));
  const Json plain = JsonOf(Ckptctl({"show", run() + "@300", "--json"}));
  EXPECT_EQ(plain["codec"], "none");
  EXPECT_EQ(plain["bytes_plain"], plain["bytes"]);
  const Json coded =
      JsonOf(Ckptctl({"verify", run() + "@500", "--hash", "--json"}));
  EXPECT_EQ(coded["ok"], true) << coded;
  EXPECT_EQ(coded["codec"], "zstd");
  EXPECT_EQ(coded["bytes_plain"], plain["bytes"]);
  EXPECT_LT(coded["bytes"], plain["bytes"]);
  EXPECT_EQ(coded["bytes_read"], coded["bytes"]);
}

TEST(CkptctlGoldenTest, DirectoriesAreNoCodec) {
  const std::string golden =
      std::string(HOLDFAST_SOURCE_DIR) + "/tests/golden/format-v1-directories";
  const Outcome shown = RunProgram("ckptctl", {"show", golden, "--json"});
  ASSERT_EQ(shown.code, 0) << shown;
  EXPECT_EQ(Json::parse(shown.out)["codec"], "none");
  EXPECT_THAT(RunProgram("ckptctl", {"show", golden}).out,
              Not(HasSubstr("zstd")));
  EXPECT_THAT(RunProgram("ckptctl", {"verify", golden}).out,
              Not(HasSubstr("plain)")));
}

}  // namespace
}  // namespace holdfast::tests
