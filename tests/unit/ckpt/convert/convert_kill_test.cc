// A conversion that is killed at each of its storage operations: never half
// offered, and the same call makes the same result of what is left.
//
// A sample by default; HOLDFAST_E2E_ALL=1 kills at every operation.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/session/catalog_locate.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

namespace fs = std::filesystem;
using tests::SmallLayout;

class ConvertKillTest : public ::testing::Test {
 protected:
  ConvertKillTest() {
    tests::SaveBare(dir_.path(), "saved", *SmallLayout(2, 1, 2));
  }

  absl::StatusOr<WriteCheckpointReport> Convert(Codec codec,
                                                Group* group = nullptr) {
    auto source = CheckpointSource::Open(dir_.path() + "/saved", {.readers = 2},
                                         RealClock());
    if (!source.ok()) return source.status();
    if (group == nullptr) {
      digest_ = DigestOfState((*source)->items(), (*source)->recorded_digests(),
                              (*source)->attributes());
    }
    WriteCheckpointOptions options;
    options.out = out();
    options.step = 300;
    options.threads = 2;
    options.codec = codec;
    options.group = group;
    // Many windows and rounds of a small state.
    options.window_bytes = 64 << 10;
    options.round_bytes = 192 << 10;
    return WriteCheckpoint(source->get(), *SmallLayout(4, 1, 3), options,
                           RealClock());
  }

  // As several ranks, which are threads; rank 0's word.
  bool ConvertTogether(int ranks, Codec codec) {
    auto groups = MakeInprocGroups(ranks);
    std::vector<std::thread> others;
    for (int r = 1; r < ranks; ++r) {
      others.emplace_back([&, r] { (void)Convert(codec, groups[r].get()); });
    }
    const bool ok = Convert(codec, groups[0].get()).ok();
    for (std::thread& other : others) other.join();
    return ok;
  }

  // In a process of its own, which is killed, with all of its ranks: true.
  bool Killed(const std::string& fault, Codec codec, int ranks) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("HOLDFAST_FAULT", fault.c_str(), 1);
      const bool ok =
          ranks == 1 ? Convert(codec).ok() : ConvertTogether(ranks, codec);
      ::_exit(ok ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return true;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }

  struct Seen {
    int kills = 0;
    int before = 0;   // nothing was offered
    int after = 0;    // the whole result was
    int went_on = 0;  // something of the first try was kept
  };

  void Sweep(const std::string& match, const std::string& when, Codec codec,
             int stride, Seen* seen, int ranks = 1) {
    for (int n = 1; !HasFailure(); n += stride) {
      const std::string fault =
          absl::StrFormat("%sn=%d,do=kill,when=%s", match, n, when);
      SCOPED_TRACE("HOLDFAST_FAULT=" + fault);
      fs::remove_all(out());
      if (!Killed(fault, codec, ranks)) break;
      ++seen->kills;
      const bool is_there =
          fs::exists(out()) && LocateCheckpoint(out(), {}, RealClock()).ok();
      ++(is_there ? seen->after : seen->before);
      // A job that is started in it does not take it for a run that has
      // nothing.
      const auto run = OpenRun(out(), {}, RealClock());
      if (run.ok() && !run->catalog.claims.empty()) {
        EXPECT_EQ(run->catalog.is_half_converted, !is_there);
      }
      const auto report = Convert(codec);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->digest, digest_);
      EXPECT_EQ(report->was_complete, is_there);
      seen->went_on += report->bytes_verified > 0 && !is_there;
      EXPECT_FALSE(fs::exists(out() + "/conversion"));
      // Every byte, by its own reader.
      const auto again = Convert(codec);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_TRUE(again->was_complete);
      EXPECT_EQ(again->digest, digest_);
    }
  }

  std::string out() const { return dir_.path() + "/out"; }

  tests::TempDir dir_{tests::MemoryFolder()};
  Digest128 digest_;
};

TEST_F(ConvertKillTest, TheSameCallGoesOnWhereverItWasKilled) {
  const bool all = std::getenv("HOLDFAST_E2E_ALL") != nullptr;
  Seen seen;
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    for (const char* when : {"before", "after"}) {
      Sweep("", when, codec, all ? 1 : 13, &seen);
      Sweep("op=write,", when, codec, all ? 1 : 11, &seen);
      Sweep("match=round-,", when, codec, all ? 1 : 2, &seen);
    }
    Sweep("match=MANIFEST,op=put,", "after", codec, 1, &seen);
  }
  // Ranks record their rounds as they come; what is left is taken up by one.
  for (const char* when : {"before", "after"}) {
    Sweep("rank=0,", when, Codec::kNone, all ? 1 : 31, &seen, /*ranks=*/3);
    Sweep("rank=2,", when, Codec::kNone, all ? 1 : 7, &seen, /*ranks=*/3);
  }
  std::printf("%d kills: %d offered nothing, %d all; %d went on\n", seen.kills,
              seen.before, seen.after, seen.went_on);
  EXPECT_GT(seen.before, 10);
  EXPECT_GT(seen.after, 1);
  EXPECT_GT(seen.went_on, 3);
}

}  // namespace
}  // namespace holdfast::ckpt
