// `ckptctl export` that is killed, or interrupted, at each of its changes of a
// file: what has the final name is whole, and the same command again makes it
// or says that it is there. What others have beside it stays.
//
// A sample in CI, every change with HOLDFAST_E2E_ALL=1; it prints how many.

#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/disk/saver_job.h"
#include "tests/support/runs/killed_at.h"
#include "tests/support/runs/small_runs.h"

namespace holdfast::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class ExportKillTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanTrace()) GTEST_SKIP() << "a process may not trace another here";
    runs_.TrainToTheEnd("run", {.sets = {"train.steps=1"}});
    digest_ = runs_.Digest("run");
    fs::create_directory(runs_.Path("to"));
    runs_.WriteFile("to/letter.txt", "mine");
    runs_.WriteFile("to/.out.partial.txt", "mine too");
  }

  std::string Out(const std::string& name = "out") const {
    return runs_.Path("to/" + name);
  }
  std::vector<std::string> Command(const std::string& out) const {
    std::vector<std::string> argv = {HOLDFAST_BIN_DIR "/ckptctl", "export",
                                     runs_.Path("run"), "--to", format_};
    argv.insert(argv.end(), more_.begin(), more_.end());
    argv.insert(argv.end(), {"--out", out});
    return argv;
  }

  // Whole, as far as its reader can tell, and with the values of the run.
  void ExpectWhole(const std::string& out) const {
    if (format_ == "hdf5") {
      const std::string back = runs_.Path("back");
      fs::remove_all(back);
      runs_.Ckptctl({"import", out, "--from", "hdf5", "--out", back});
      EXPECT_EQ(runs_.Digest("back"), digest_);
      return;
    }
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(Out("reference"))) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(FileText(entry.path()) == FileText(out + "/" + name)) << name;
      ++files;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), files);
  }
  void ExpectNothingBesideIt() const {
    EXPECT_EQ(FileText(runs_.Path("to/letter.txt")), "mine");
    EXPECT_EQ(FileText(runs_.Path("to/.out.partial.txt")), "mine too");
    for (const auto& entry : fs::directory_iterator(runs_.Path("to"))) {
      EXPECT_THAT(entry.path().filename().string(),
                  AnyOf("letter.txt", ".out.partial.txt", "out", "reference"));
    }
  }

  struct Seen {
    int signals = 0;
    int nothing = 0;  // then there was nothing of its name
    int whole = 0;    // the whole export was there
  };

  // False: it went wrong.
  bool Break(const SignalAt& at, Seen* seen) {
    SCOPED_TRACE(testing::Message() << format_ << ", signal " << at.signal
                                    << (at.after ? " after" : " before")
                                    << " change " << at.change);
    fs::remove_all(Out());
    const TracedEnd end = RunTraced(Command(Out()), at);
    // How many there are differs a little: of threads, who is last differs.
    if (!end.was_signaled) {
      EXPECT_EQ(end.code, 0) << end;
      ExpectWhole(Out());
      return !HasFailure();
    }
    ++seen->signals;
    const bool is_there = fs::exists(Out());
    ++(is_there ? seen->whole : seen->nothing);
    if (at.signal == SIGINT) {
      EXPECT_EQ(end.code, is_there ? 0 : 128 + SIGINT) << end;
      ExpectNothingBesideIt();
    }
    if (is_there) ExpectWhole(Out());
    const TracedEnd again = RunTraced(Command(Out()), {});
    EXPECT_EQ(again.code, is_there ? 78 : 0) << again;
    if (is_there) {
      EXPECT_THAT(again.said, HasSubstr("exists already and is left as it is; "
                                        "name another"));
    }
    ExpectWhole(Out());
    ExpectNothingBesideIt();
    return !HasFailure();
  }

  void Sweep(const std::string& format, const std::vector<std::string>& more) {
    format_ = format;
    more_ = more;
    const TracedEnd reference = RunTraced(Command(Out("reference")), {});
    ASSERT_EQ(reference.code, 0) << reference;
    ASSERT_GT(reference.changes, 10);
    const int all = reference.changes;
    for (const int signal : {SIGKILL, SIGINT}) {
      Seen seen;
      for (const bool after : {false, true}) {
        std::vector<int> changes;
        if (WholeSweep()) {
          for (int n = 1; n <= all; ++n) changes.push_back(n);
        } else if (signal == SIGKILL) {
          // The last ones are the renaming and what is around it.
          changes = {1, all / 3, all * 2 / 3, all - 2, all - 1, all};
        } else {
          changes = {all / 2, all};
        }
        for (const int n : changes) {
          if (!Break({signal, n, after}, &seen)) return;
        }
      }
      // Runs differ by a few changes, so the last ones may have been missed.
      for (int n = all; seen.whole == 0 && n > all - 20; --n) {
        if (!Break({signal, n, /*after=*/true}, &seen)) return;
      }
      std::printf(
          "%s, signal %d, %d changes: %d times; %d left nothing, %d a "
          "whole export\n",
          format.c_str(), signal, all, seen.signals, seen.nothing, seen.whole);
      EXPECT_GE(seen.nothing, 2);
      EXPECT_GE(seen.whole, 1);
    }
  }

  const SmallRuns runs_;
  std::string digest_;
  std::string format_;
  std::vector<std::string> more_;
};

TEST_F(ExportKillTest, HuggingFaceFilesAreThereWholeOrNotAtAll) {
  Sweep("hf", {"--max-shard-size", "100kB"});
}

TEST_F(ExportKillTest, AnArchiveIsThereWholeOrNotAtAll) { Sweep("hdf5", {}); }

}  // namespace
}  // namespace holdfast::tests
