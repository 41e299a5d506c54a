// The programs under a limit of processes that leaves them no thread, or one:
// they do the same work with fewer, and say so.

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/imported_fixture.h"
#include "tests/support/thread_limit.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

constexpr int kNoLimit = 126;

// How many threads a program gets beside its first.
class FewThreadsTest : public ImportedRunTest,
                       public testing::WithParamInterface<int> {
 protected:
  Outcome Limited(const std::string& program,
                  const std::vector<std::string>& words) const {
    return RunProgram(program, words, "", [] {
      // The search for leaks starts a thread of its own.
      ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      return LimitThreads(GetParam()) &&
             ::access(HOLDFAST_BIN_DIR "/ckptctl", X_OK) == 0;
    });
  }
  // OUT, made on four threads where there are so many.
  std::string Make(const std::string& program, std::vector<std::string> words,
                   const std::string& out) const {
    words.insert(words.end(), {"--threads", "4", "--out", folder_ / out});
    const Outcome outcome = Limited(program, words);
    EXPECT_EQ(outcome.code, 0) << outcome;
    if (GetParam() == 0) {
      EXPECT_THAT(outcome.err, HasSubstr("without one"));
    }
    return folder_ / out;
  }
};

INSTANTIATE_TEST_SUITE_P(Further, FewThreadsTest, testing::Values(0, 1));

TEST_P(FewThreadsTest, WhatIsVerifiedRewrittenAndConvertedIsTheSame) {
  const Outcome verified =
      Limited("ckptctl", {"verify", run(), "--hash", "--threads", "4"});
  if (verified.code == kNoLimit) GTEST_SKIP() << "no such limit for this user";
  EXPECT_EQ(verified.code, 0) << verified;
  // With one thread, the first may be over before the second is asked for.
  if (GetParam() == 0) {
    EXPECT_THAT(verified.err, HasSubstr("ulimit -u"));
    EXPECT_THAT(verified.err, HasSubstr("goes on without one"));
  }

  const std::string digest = Digest(run());
  const std::vector<std::string> plain = {run(), "--tp", "2", "--pp",
                                          "2",   "--dp", "3"};
  std::vector<std::string> coded = plain;
  coded.insert(coded.end(), {"--codec", "zstd"});
  EXPECT_EQ(Digest(Make("ckpt-reshard", plain, "plain")), digest);
  EXPECT_EQ(Digest(Make("ckpt-reshard", coded, "coded")), digest);
  const std::string archive =
      Make("ckptctl", {"export", run(), "--to", "hdf5"}, "a.h5");
  EXPECT_EQ(Digest(Make("ckptctl", {"import", archive, "--from", "hdf5"},
                        "from-hdf5")),
            digest);
  const std::string files =
      Make("ckptctl", {"export", run(), "--to", "hf"}, "hf-again");
  EXPECT_EQ(
      Digest(Make("ckptctl", {"import", files, "--from", "hf"}, "from-hf")),
      digest);
}

}  // namespace
}  // namespace holdfast::tests
