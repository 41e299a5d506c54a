// File systems that are really full or read-only under a job that saves: three
// failed saves end it with 74 and the system's own word, what was whole stays
// whole, and with the cause gone the next job goes on.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/disk/saver_job.h"
#include "tests/support/scratch_fs.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

constexpr int kIo = 74;

class FullDiskTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made = ScratchFs::Make(GetParam(), dir_.path() + "/fs", 16);
    if (absl::IsUnimplemented(made.status())) {
      GTEST_SKIP() << made.status().message();
    }
    ASSERT_TRUE(made.ok()) << made.status();
    fs_ = *std::move(made);
    spec_.run = fs_->path() + "/run";
    spec_.told = dir_.path() + "/told";
    std::filesystem::create_directory(spec_.run);
  }

  // A job is stopped between its saves (rank 0 is about to make the third
  // directory), `change` comes over its disk, and it goes on.
  void BreakAndRepair(const std::string& reason,
                      const std::function<void()>& change,
                      const std::function<void()>& repair) {
    spec_.saves = 1000;
    spec_.keep_last = 2;
    spec_.fault = "rank=0,op=mkdir,match=step-000000003,do=stop";
    SaverJob job(spec_);
    const pid_t stopped = job.WaitForStop();
    ASSERT_NE(stopped, -1) << job.err();
    // The other rank waits in its third save; nothing is being written.
    change();
    job.Continue(stopped);
    EXPECT_EQ(job.Wait(), kIo) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(reason));
    const Told told = job.told();
    EXPECT_EQ(told.committed, 2);
    EXPECT_TRUE(told.lost.contains(5)) << "the third one in a row";
    // Whole although nothing can be written.
    EXPECT_NE(Ckptctl(dir_.path(), {"verify", spec_.run, "--hash"}), "");

    repair();
    spec_.base = 100;
    spec_.saves = 2;
    spec_.fault = "";
    SaverJob next(spec_);
    EXPECT_EQ(next.Wait(), 0) << next.err();
    int64_t found = -1;
    EXPECT_EQ(CheckRun(spec_.run, next.told(), 3, &found), "");
    EXPECT_EQ(found, 102);
  }

  TempDir dir_{MemoryFolder()};
  std::unique_ptr<ScratchFs> fs_;
  SaverSpec spec_;
};

INSTANTIATE_TEST_SUITE_P(FileSystems, FullDiskTest,
                         testing::Values("tmpfs", "ext4", "xfs"),
                         [](const auto& info) { return info.param; });

TEST_P(FullDiskTest, ADiskThatIsFullCostsSavesAndNothingElse) {
  const std::string filler = fs_->path() + "/filler";
  BreakAndRepair(
      "(ENOSPC)",
      [&] {
        std::ofstream file(filler, std::ios::binary);
        const std::string zeros(4096, '\0');
        while (file.write(zeros.data(), zeros.size()).flush()) {
        }
      },
      [&] { std::filesystem::remove(filler); });
}

TEST_P(FullDiskTest, ADiskThatTurnsReadOnlyCostsSavesAndNothingElse) {
  BreakAndRepair(
      "(EROFS)",
      [&] {
        const absl::Status set = fs_->SetReadOnly(true);
        ASSERT_TRUE(set.ok()) << set;
      },
      [&] { ASSERT_TRUE(fs_->SetReadOnly(false).ok()); });
}

}  // namespace
}  // namespace holdfast::tests
