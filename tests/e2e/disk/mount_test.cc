// The disk is taken from a job that saves, on ext4 and on xfs, for real: the
// file system is shut down, the processes end, it is mounted again and its
// journal replayed. The newest checkpoint that was reported as committed is
// there, bit for bit, and nothing that was reported as lost.
//
// HOLDFAST_MOUNT_SEEDS=N makes N cuts at random moments on each; the whole
// sweep over all storage operations of a save is HOLDFAST_E2E_ALL's. A failure
// says with which seed or operation.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/sync_dir.h"
#include "ckpt/storage/fd.h"
#include "gtest/gtest.h"
#include "tests/e2e/disk/saver_job.h"
#include "tests/support/scratch_fs.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tests {
namespace {

int SeedsOr(int in_ci) {
  const char* const text = std::getenv("HOLDFAST_MOUNT_SEEDS");
  int seeds = 0;
  return text != nullptr && absl::SimpleAtoi(text, &seeds) && seeds > 0 ? seeds
                                                                        : in_ci;
}

// Where the cuts fell.
struct Seen {
  int rounds = 0;
  int in_a_save = 0;  // nobody had been told the outcome of the last one begun
  int before = 0;     // and it was not found
  int unheard = 0;    // and it was found
  int after = 0;      // somebody had been told that it was committed
};

class MountTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made = ScratchFs::Make(GetParam(), dir_.path() + "/fs");
    if (absl::IsUnimplemented(made.status())) {
      GTEST_SKIP() << made.status().message();
    }
    ASSERT_TRUE(made.ok()) << made.status();
    fs_ = *std::move(made);
  }

  // A run of its own for each round.
  SaverSpec Spec(int round) {
    SaverSpec spec;
    spec.run = fs_->path() + absl::StrFormat("/run%d", round);
    spec.told = dir_.path() + absl::StrFormat("/told%d", round);
    spec.ranks = 2 + round % 3;
    spec.keep_last = 1 + round % 2;
    spec.storage = round % 4 == 3 ? "posix" : "auto";
    std::filesystem::create_directory(spec.run);
    // The run's own name is the user's to make durable.
    ::sync();
    return spec;
  }

  // The cut: then mount again, load, judge.
  void CutAndJudge(SaverJob& job, const SaverSpec& spec, Seen* seen) {
    const Told before = job.told();
    const absl::Status shut = fs_->Shutdown();
    ASSERT_TRUE(shut.ok()) << shut;
    job.Kill();
    const absl::Status remounted = fs_->Remount();
    ASSERT_TRUE(remounted.ok()) << remounted;
    int64_t found = -1;
    EXPECT_EQ(CheckRun(spec.run, job.told(), 2 + spec.ranks % 2, &found), "");
    ++seen->rounds;
    if (before.committed == before.begun) {
      ++seen->after;
    } else {
      ++seen->in_a_save;
      ++(found < before.begun ? seen->before : seen->unheard);
    }
    std::filesystem::remove_all(spec.run);
  }

  void Print(const Seen& seen) {
    std::printf(
        "%s: %d cuts, %d of them in a save, whose checkpoint was then absent "
        "%d times and there %d times\n",
        GetParam(), seen.rounds, seen.in_a_save, seen.before, seen.unheard);
  }

  TempDir dir_{MemoryFolder()};
  std::unique_ptr<ScratchFs> fs_;
};

INSTANTIATE_TEST_SUITE_P(FileSystems, MountTest, testing::Values("ext4", "xfs"),
                         [](const auto& info) { return info.param; });

// The tool itself: what was synced is kept, and what was not is lost.
TEST_P(MountTest, AShutdownLosesWhatWasNotSynced) {
  const auto write = [&](const std::string& name, bool sync) {
    const std::string path = fs_->path() + "/" + name;
    const ckpt::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT, 0644));
    const std::string text(8192, 'x');
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), 8192);
    if (sync) {
      EXPECT_EQ(::fsync(fd.get()), 0);
    }
  };
  write("kept", true);
  write("lost", false);
  ASSERT_TRUE(fs_->Shutdown().ok());
  ASSERT_TRUE(fs_->Remount().ok());
  EXPECT_EQ(std::filesystem::file_size(fs_->path() + "/kept"), 8192u);
  struct stat lost;
  EXPECT_TRUE(::stat((fs_->path() + "/lost").c_str(), &lost) != 0 ||
              lost.st_size == 0);
}

// XFS says yes to the sync of a directory whose names it has just lost.
TEST_P(MountTest, NamesThatAShutdownLostAreNotReportedAsSynced) {
  const ckpt::Fd dir(
      ::open(fs_->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ckpt::Fd file(
      ::openat(dir.get(), "before", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::fsync(file.get()), 0);
  file.Reset();
  ASSERT_EQ(ckpt::SyncDirFd(dir.get()), 0);
  ASSERT_EQ(::renameat(dir.get(), "before", dir.get(), "after"), 0);
  ASSERT_TRUE(fs_->Shutdown().ok());
  EXPECT_NE(ckpt::SyncDirFd(dir.get()), 0);
}

TEST_P(MountTest, ACutAtAnyMomentLosesNothingThatWasReported) {
  Seen seen;
  for (int seed = 1; seed <= SeedsOr(8); ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    SaverSpec spec = Spec(seed);
    spec.saves = 1'000'000;
    SaverJob job(spec);
    const uint64_t draw = static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15u;
    ASSERT_TRUE(job.WaitUntil([&](const Told& told) {
      return told.committed >= static_cast<int64_t>(1 + (draw >> 40) % 3);
    })) << job.err();
    ckpt::RealClock().Sleep(absl::Microseconds((draw >> 20) % 20'000));
    CutAndJudge(job, spec, &seen);
    if (HasFatalFailure()) return;
  }
  Print(seen);
}

// Rank 0, and another one, stand still before their n-th operation while the
// others go on for a moment; then the disk goes.
TEST_P(MountTest, ACutAtAnyStorageOperationLosesNothingThatWasReported) {
  Seen seen;
  int round = 0;
  // False when the rank had no such operation.
  const auto cut = [&](const std::string& fault) {
    SCOPED_TRACE("HOLDFAST_FAULT=" + fault);
    SaverSpec spec = Spec(++round);
    spec.saves = 2;
    spec.fault = fault;
    SaverJob job(spec);
    const bool stopped = job.WaitForStop() != -1;
    if (stopped) ckpt::RealClock().Sleep(absl::Milliseconds(5));
    CutAndJudge(job, spec, &seen);
    return stopped && !HasFatalFailure();
  };
  for (const int rank : {0, 1}) {
    const int stride = WholeSweep() ? 1 : rank == 0 ? 7 : 11;
    for (int n = WholeSweep() ? 1 : 1 + rank * 4;; n += stride) {
      const bool before =
          cut(absl::StrFormat("rank=%d,n=%d,do=stop,when=before", rank, n));
      if (!before ||
          (WholeSweep() &&
           !cut(absl::StrFormat("rank=%d,n=%d,do=stop,when=after", rank, n)))) {
        break;
      }
    }
  }
  // The line between the two.
  EXPECT_TRUE(cut("match=MANIFEST,op=put,n=2,do=stop,when=before"));
  EXPECT_TRUE(cut("match=MANIFEST,op=put,n=2,do=stop,when=after"));
  Print(seen);
  EXPECT_GT(seen.before, 0) << "no cut fell before a commit";
  EXPECT_GT(seen.unheard, 0) << "no cut fell behind a commit";
}

}  // namespace
}  // namespace holdfast::tests
