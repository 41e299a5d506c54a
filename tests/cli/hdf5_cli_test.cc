// `ckptctl export --to hdf5` and back: words, exit codes, not one bit lost.

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/ckptctl_fixture.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Hdf5CliTest : public CkptctlTest {
 protected:
  Outcome Export(const std::string& checkpoint, const std::string& out) const {
    return Ckptctl({"export", checkpoint, "--to", "hdf5", "--out",
                    folder_ / out, "--json"});
  }
  Outcome Import(const std::string& from, const std::string& out) const {
    return Ckptctl({"import", folder_ / from, "--from", "hdf5", "--out",
                    folder_ / out, "--dp", "3", "--json"});
  }
};

TEST_F(Hdf5CliTest, AnArchiveComesBackWithoutADifference) {
  WriteCoded();
  for (const std::string step : {"300", "500"}) {
    const std::string from = run() + "@" + step;
    const Outcome exported = Export(from, step + ".h5");
    ASSERT_EQ(exported.code, 0) << exported;
    const Json json = JsonOf(exported);
    EXPECT_EQ(json["tensors"], layout_->items().size());
    EXPECT_THAT(json["notes"], IsEmpty());
    const Outcome imported = Import(step + ".h5", step);
    ASSERT_EQ(imported.code, 0) << imported;
    EXPECT_EQ(std::to_string(JsonOf(imported)["step"].get<int>()), step);
    EXPECT_EQ(JsonOf(imported)["digest"],
              JsonOf(Ckptctl({"show", from, "--hash", "--json"}))["digest"]);
    const Outcome same = Ckptctl({"diff", from, folder_ / step});
    EXPECT_EQ(same.code, 0) << same;
  }
}

TEST_F(Hdf5CliTest, AnImportIsCodedAsAReshardIs) {
  ASSERT_EQ(Export(run(), "a.h5").code, 0);
  const std::vector<std::string> import = {
      "import", folder_ / "a.h5", "--from", "hdf5", "--out", folder_ / "in"};
  const auto with = [&import](const std::vector<std::string>& more) {
    std::vector<std::string> words = import;
    words.insert(words.end(), more.begin(), more.end());
    return Ckptctl(words);
  };
  EXPECT_EQ(with({"--codec", "zstd", "--codec-level", "3"}).code, 64);
  EXPECT_EQ(with({"--codec", "zstd:99"}).code, 64);
  EXPECT_EQ(with({"--memory-limit", "32M"}).code, 78);
  const Outcome outcome =
      with({"--codec", "zstd:3", "--memory-limit", "128MiB"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(JsonOf(Ckptctl({"show", folder_ / "in", "--json"}))["codec"],
            "zstd");
}

TEST_F(Hdf5CliTest, WhatIsThereIsLeftAsItIs) {
  folder_.Write("a.h5", "mine");
  const Outcome outcome = Export(run(), "a.h5");
  EXPECT_EQ(outcome.code, 78) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("exists already"));
  EXPECT_EQ(FileText(folder_ / "a.h5"), "mine");
  EXPECT_EQ(Export(run(), "no/such/a.h5").code, 78);
  EXPECT_EQ(Ckptctl({"export", run(), "--to", "hdf5", "--out", folder_ / "b.h5",
                     "--dtype", "bf16"})
                .code,
            78);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "b.h5"));
}

TEST_F(Hdf5CliTest, ADamagedCheckpointMakesNoArchive) {
  Flip(DirOf(k300) + "/shard-00001.hf", 5000);
  const Outcome outcome = Export(run() + "@300", "a.h5");
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("shard-00001.hf"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".a.h5.partial"));
}

TEST_F(Hdf5CliTest, WhatIsNoArchiveMakesNoRun) {
  folder_.Write("text.h5", "no HDF5 at all");
  const Outcome text = Import("text.h5", "out");
  EXPECT_EQ(text.code, 78) << text;
  EXPECT_THAT(text.err,
              AllOf(HasSubstr("text.h5"), HasSubstr("is no whole HDF5 file")));
  EXPECT_EQ(Import("nowhere.h5", "out").code, 66);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace holdfast::tests
