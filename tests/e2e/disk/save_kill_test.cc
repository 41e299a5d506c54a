// SIGKILL of each rank at each of its storage operations: claim, adoption,
// load, seal, two saves with an optimizer beside them, retention; before the
// operation is made, and after it was answered. Whatever is left, a new job
// finds the newest checkpoint that was reported as committed, bit for bit.
//
// A sample in CI, all of it with HOLDFAST_E2E_ALL=1; it prints how many. Ranks
// are processes that do nothing else (saver.cc); kill_test.cc does some of the
// same to whole training jobs.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/e2e/disk/saver_job.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tests {
namespace {

constexpr int kRanks = 3;

class SaveKillTest : public testing::Test {
 protected:
  void SetUp() override {
    SaverJob job({.run = Folder("base"),
                  .told = dir_.path() + "/told",
                  .ranks = kRanks,
                  .saves = 1});
    ASSERT_EQ(job.Wait(), 0) << job.err();
  }

  std::string Folder(const std::string& name) {
    const std::string path = dir_.path() + "/" + name;
    std::filesystem::create_directory(path);
    return path;
  }

  struct Seen {
    int kills = 0;
    int old_ones = 0;
    int new_ones = 0;
  };

  // False when the rank had no such operation.
  bool Break(const std::string& fault, Seen* seen) {
    SCOPED_TRACE("HOLDFAST_FAULT=" + fault);
    const std::string run = dir_.path() + "/run";
    const std::string told = dir_.path() + "/run-told";
    std::filesystem::remove_all(run);
    std::filesystem::copy(dir_.path() + "/base", run,
                          std::filesystem::copy_options::recursive);
    std::filesystem::copy_file(
        dir_.path() + "/told", told,
        std::filesystem::copy_options::overwrite_existing);
    SaverJob job({.run = run,
                  .told = told,
                  .ranks = kRanks,
                  .base = 1,
                  .saves = 2,
                  .fault = fault});
    const int code = job.Wait();
    if (code == 0) return false;
    EXPECT_EQ(code, 128 + 9) << job.err();
    int64_t found = -1;
    EXPECT_EQ(CheckRun(run, job.told(), 2, &found), "");
    ++seen->kills;
    ++(found == job.told().begun && found > 1 ? seen->new_ones
                                              : seen->old_ones);
    return true;
  }

  Seen Sweep(int rank, int first, int stride, const std::string& when) {
    Seen seen;
    for (int n = first; !HasFailure(); n += stride) {
      if (!Break(absl::StrFormat("rank=%d,n=%d,do=kill,when=%s", rank, n, when),
                 &seen)) {
        break;
      }
    }
    std::printf(
        "rank %d, %s the operation: %d kills; the save under way was there "
        "after %d and absent after %d\n",
        rank, when.c_str(), seen.kills, seen.new_ones, seen.old_ones);
    return seen;
  }

  TempDir dir_{MemoryFolder()};
};

TEST_F(SaveKillTest, AnyRankAtAnyStorageOperation) {
  const int stride = WholeSweep() ? 1 : 4;
  Seen all;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const char* when : {"before", "after"}) {
      const Seen seen = Sweep(rank, WholeSweep() ? 1 : 1 + rank, stride, when);
      all.kills += seen.kills;
      all.old_ones += seen.old_ones;
      all.new_ones += seen.new_ones;
    }
  }
  EXPECT_TRUE(Break("match=MANIFEST,op=put,do=kill,when=before", &all));
  EXPECT_TRUE(Break("match=MANIFEST,op=put,do=kill,when=after", &all));
  std::printf("%d kills in all\n", all.kills);
  EXPECT_GT(all.old_ones, 0) << "no kill fell before a commit";
  EXPECT_GT(all.new_ones, 0) << "no kill fell behind a commit";
}

}  // namespace
}  // namespace holdfast::tests
