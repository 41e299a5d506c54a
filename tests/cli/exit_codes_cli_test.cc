// One cause, one exit code, whichever verb meets it: README's table.

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/imported_fixture.h"

namespace holdfast::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kSkip = 126;  // `before` could not do it

// Root may read and write anything. False: it cannot be had, or that user does
// not get at the programs.
bool BecomeAUser() {
  return (::geteuid() != 0 || ::setuid(65534) == 0) &&
         ::access(HOLDFAST_BIN_DIR "/ckptctl", X_OK) == 0;
}

// A verb; SOURCE and OUT stand for what it reads and makes.
struct Verb {
  const char* name;
  std::vector<std::string> words;
  bool reads_run = true;  // else an archive
  bool makes = true;
  std::string number = {};  // an option that takes one
  bool is_short = false;    // reads no tensors
};

const Verb kVerbs[] = {
    {.name = "Ls",
     .words = {"ckptctl", "ls", "SOURCE"},
     .makes = false,
     .is_short = true},
    {.name = "Show",
     .words = {"ckptctl", "show", "SOURCE", "--hash"},
     .makes = false,
     .number = "--readers",
     .is_short = true},
    {.name = "Verify",
     .words = {"ckptctl", "verify", "SOURCE", "--hash"},
     .makes = false,
     .number = "--threads"},
    {.name = "Diff",
     .words = {"ckptctl", "diff", "SOURCE", "RUN"},
     .makes = false,
     .number = "--readers"},
    {.name = "Export",
     .words = {"ckptctl", "export", "SOURCE", "--to", "hdf5", "--out", "OUT"},
     .number = "--threads"},
    {.name = "Import",
     .words = {"ckptctl", "import", "SOURCE", "--from", "hdf5", "--out", "OUT"},
     .reads_run = false,
     .number = "--threads"},
    {.name = "CkptctlReshard",
     .words = {"ckptctl", "reshard", "SOURCE", "--tp", "1", "--pp", "1", "--dp",
               "2", "--out", "OUT"},
     .number = "--threads"},
    {.name = "Reshard",
     .words = {"ckpt-reshard", "SOURCE", "--tp", "1", "--pp", "1", "--dp", "2",
               "--out", "OUT"},
     .number = "--threads"},
};

class ExitCodesTest : public ImportedRunTest,
                      public testing::WithParamInterface<Verb> {
 protected:
  ExitCodesTest() {
    if (GetParam().reads_run) return;
    const Outcome made = RunProgram("ckptctl", {"export", run(), "--to", "hdf5",
                                                "--out", folder_ / "archive"});
    HF_CHECK(made.code == 0, "%s", made.err);
  }

  std::string source() const {
    return GetParam().reads_run ? run() : folder_ / "archive";
  }
  Outcome Run(const std::string& source, const std::string& out,
              const std::vector<std::string>& more = {},
              const std::function<bool()>& before = nullptr) const {
    std::vector<std::string> words = GetParam().words;
    for (std::string& word : words) {
      if (word == "SOURCE") word = source;
      if (word == "OUT") word = out;
      if (word == "RUN") word = run();
    }
    words.insert(words.end(), more.begin(), more.end());
    return RunProgram(words[0], {words.begin() + 1, words.end()}, "", before);
  }
  // Ends with `code` and says why.
  void Expect(int code, const Outcome& outcome) const {
    EXPECT_EQ(outcome.code, code) << outcome;
    EXPECT_THAT(outcome.err, Not(IsEmpty()));
  }
  std::string out() const { return folder_ / "out"; }
};

INSTANTIATE_TEST_SUITE_P(Verbs, ExitCodesTest, testing::ValuesIn(kVerbs),
                         [](const auto& info) { return info.param.name; });

TEST_P(ExitCodesTest, TheCommandLineIs64) {
  Expect(64, Run(source(), out(), {"--no-such-flag"}));
  if (!GetParam().number.empty()) {
    Expect(64, Run(source(), out(), {GetParam().number, "many"}));
    Expect(64, Run(source(), out(), {GetParam().number, "-1"}));
  }
  // `ls` lists a run, and an import reads no run.
  if (GetParam().reads_run && GetParam().name != std::string("Ls")) {
    Expect(64, Run(run() + "@foo", out()));
    Expect(64, Run(run() + "@", out()));
  }
  EXPECT_FALSE(fs::exists(out()));
}

TEST_P(ExitCodesTest, WhatIsNotThereIs66) {
  Expect(66, Run(folder_ / "none", out()));
  if (GetParam().reads_run) {
    fs::create_directory(folder_ / "empty");
    Expect(66, Run(folder_ / "empty", out()));
    if (GetParam().name != std::string("Ls")) {
      Expect(66, Run(run() + "@999", out()));
      Expect(66, Run(run() + "@step-000000000.i0009.a01", out()));
    }
  }
  EXPECT_FALSE(fs::exists(out()));
}

TEST_P(ExitCodesTest, AnOutputThatIsThereOrHasNoPlaceIs78) {
  if (!GetParam().makes) return;
  fs::create_directory(folder_ / "full");
  folder_.Write("full/mine", "mine");
  folder_.Write("file", "mine");
  Expect(78, Run(source(), folder_ / "full"));
  Expect(78, Run(source(), folder_ / "file"));
  Expect(78, Run(source(), folder_ / "no/parent"));
  Expect(78, Run(source(), folder_ / "file/below"));
  if (GetParam().reads_run) {
    // What is read is not written into.
    Expect(78, Run(source(), run()));
    Expect(78, Run(source(), run() + "/inside"));
    EXPECT_FALSE(fs::exists(run() + "/inside"));
  }
  EXPECT_EQ(FileText(folder_ / "full/mine"), "mine");
  EXPECT_EQ(FileText(folder_ / "file"), "mine");
}

TEST_P(ExitCodesTest, WhatTheSystemRefusesIs74) {
  if (!GetParam().makes) return;
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms(0555));
  const Outcome closed = Run(source(), folder_ / "closed/out", {}, BecomeAUser);
  if (closed.code != kSkip) {
    Expect(74, closed);
    EXPECT_THAT(closed.err, testing::HasSubstr("Permission denied"));
  }
  // A file system of 64 KiB, in the new process alone.
  fs::create_directory(folder_ / "small");
  const std::string small = folder_ / "small";
  for (const unsigned long flags :
       {0ul, static_cast<unsigned long>(MS_RDONLY)}) {
    const Outcome outcome = Run(source(), small + "/out", {}, [&] {
      return ::unshare(CLONE_NEWNS) == 0 &&
             ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ==
                 0 &&
             ::mount("tmpfs", small.c_str(), "tmpfs", flags, "size=64k") == 0;
    });
    if (outcome.code != kSkip) Expect(74, outcome);
  }
  fs::permissions(folder_ / "closed", fs::perms::all);
}

TEST_P(ExitCodesTest, ASourceThatMayNotBeReadIs74) {
  fs::permissions(source(), fs::perms::none);
  const Outcome outcome = Run(source(), out(), {}, BecomeAUser);
  fs::permissions(source(), fs::perms::all);
  if (outcome.code == kSkip) GTEST_SKIP() << "cannot become another user";
  Expect(74, outcome);
}

TEST_P(ExitCodesTest, CtrlCIs130) {
  if (GetParam().is_short) return;  // is over at once
  const Outcome outcome = Run(source(), out(), {}, [] {
    // Each call takes longer than the signal.
    ::setenv("HOLDFAST_FAULT",
             GetParam().reads_run ? "op=read,do=delay,ms=1000"
                                  : "op=write,do=delay,ms=1000",
             1);
    const pid_t program = ::getpid();
    if (::fork() != 0) return true;
    ::usleep(50'000);
    ::kill(program, SIGINT);
    ::_exit(0);
  });
  EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome;
}

}  // namespace
}  // namespace holdfast::tests
