// Two jobs of real processes on one run directory: started at once, and one
// stopped by SIGSTOP at a storage operation, another that takes the run and
// saves, SIGCONT. What the newer owner counts on stays whole, the catalog shows
// it, and the old job ends with 78.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/disk/saver_job.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tests {
namespace {

using ::testing::HasSubstr;

constexpr int kLostTheRun = 78;
constexpr int64_t kNewBase = 1000;  // steps of the newer job
constexpr int64_t kForEver = 1'000'000;

class OwnersTest : public testing::Test {
 protected:
  SaverSpec Spec(const std::string& name) {
    SaverSpec spec;
    spec.run = run();
    spec.told = dir_.path() + "/" + name;
    return spec;
  }
  std::string run() const { return dir_.path() + "/run"; }
  void SetUp() override { FreshRun(); }
  void FreshRun() {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directories(run());
  }

  nlohmann::json Ls() {
    auto listed = nlohmann::json::parse(Ckptctl(dir_.path(), {"ls", run()}),
                                        nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(listed.is_object());
    return listed;
  }
  // The catalog's newest is `step`, and everything it calls committed is whole.
  void ExpectCatalog(int64_t step) {
    const nlohmann::json listed = Ls();
    EXPECT_FALSE(listed["newest"].is_null());
    for (const auto& entry : listed["checkpoints"]) {
      if (entry["newest"] == true) {
        EXPECT_EQ(entry["step"], step);
      }
      if (entry["state"] == "committed") {
        const std::string id = entry["id"];
        EXPECT_NE(Ckptctl(dir_.path(), {"verify", run() + "@" + id, "--hash"}),
                  "")
            << id;
      }
    }
  }
  // "committed", "late", "superseded", "attempt"; "" when it is gone.
  std::string StateOf(int64_t step) {
    const nlohmann::json listed = Ls();
    for (const auto& entry : listed["checkpoints"]) {
      if (entry["step"] == step) return entry["state"];
    }
    return "";
  }

  TempDir dir_{MemoryFolder()};
};

TEST_F(OwnersTest, OfTwoJobsStartedAtOnceOneKeepsTheRun) {
  for (int round = 0; round < (WholeSweep() ? 40 : 4); ++round) {
    SCOPED_TRACE(round);
    FreshRun();
    SaverSpec first = Spec("first");
    SaverSpec second = Spec("second");
    first.saves = second.saves = kForEver;
    second.base = kNewBase * kNewBase;
    SaverJob a(first);
    SaverJob b(second);
    // One hears that it has lost; the other one saves on.
    int lost = -1;
    const auto ends = [&](SaverJob& job, int which) {
      if (lost == -1 && job.Ended()) lost = which;
      return lost != -1;
    };
    ASSERT_TRUE(a.WaitUntil([&](const Told&) {
      return ends(b, 1) || ends(a, 0);
    }) || lost == 0)
        << a.err() << b.err();
    SaverJob& loser = lost == 0 ? a : b;
    SaverJob& winner = lost == 0 ? b : a;
    EXPECT_EQ(loser.Wait(), kLostTheRun) << loser.err();
    EXPECT_THAT(loser.err(), HasSubstr("another "));
    const int64_t then = winner.told().committed;
    EXPECT_TRUE(winner.WaitUntil([&](const Told& told) {
      return told.committed > then + 2;
    })) << winner.err();
    winner.Kill();
    int64_t found = -1;
    EXPECT_EQ(CheckRun(run(), winner.told(), 2, &found), "");
    ExpectCatalog(found);
  }
}

// Rank 0 of the old job at each of its operations on checkpoints: of a save,
// and of the retention after it.
TEST_F(OwnersTest, AnOldRankZeroThatWasStoppedAnywhereHurtsNothing) {
  const int stride = WholeSweep() ? 1 : 5;
  int stops = 0;
  for (int n = 1; n <= 48; n += stride) {
    const std::string fault =
        absl::StrFormat("rank=0,match=step-,n=%d,do=stop,when=%s", n,
                        n / stride % 2 == 0 ? "before" : "after");
    SCOPED_TRACE("HOLDFAST_FAULT=" + fault);
    FreshRun();
    SaverSpec spec = Spec("old");
    spec.saves = kForEver;
    // Its directory may be swept before the other rank comes to make its file,
    // which looks for it for half of this.
    spec.begin_ms = 3000;
    spec.fault = fault;
    SaverJob old_job(spec);
    const pid_t stopped = old_job.WaitForStop();
    ASSERT_NE(stopped, -1) << old_job.err();
    ++stops;

    SaverSpec taker = Spec("new");
    taker.base = kNewBase;
    taker.saves = 2;
    taker.keep_last = 4;
    SaverJob new_job(taker);
    ASSERT_EQ(new_job.Wait(), 0) << new_job.err();
    old_job.Continue(stopped);
    EXPECT_EQ(old_job.Wait(), kLostTheRun) << old_job.err();
    ExpectCatalog(kNewBase + 2);
    int64_t found = -1;
    EXPECT_EQ(CheckRun(run(), new_job.told(), 3, &found), "");
    EXPECT_EQ(found, kNewBase + 2);
    if (HasFailure()) return;
  }
  std::printf("%d stops\n", stops);
}

// Between the look at owners/ and the manifest, with the new owner between its
// seal and its first save: nothing of the attempt has been swept, and the put
// goes through.
TEST_F(OwnersTest, AManifestPutAfterTheTakeoverIsNeverOffered) {
  SaverSpec spec = Spec("old");
  spec.saves = kForEver;
  spec.fault = "rank=0,match=step-000000002.i0001.a02/MANIFEST,op=put,do=stop";
  SaverJob old_job(spec);
  const pid_t old_stopped = old_job.WaitForStop();
  ASSERT_NE(old_stopped, -1) << old_job.err();

  SaverSpec taker = Spec("new");
  taker.base = kNewBase;
  taker.fault = "rank=0,op=mkdir,match=step-,do=stop";
  SaverJob new_job(taker);
  const pid_t new_stopped = new_job.WaitForStop();
  ASSERT_NE(new_stopped, -1) << new_job.err();

  old_job.Continue(old_stopped);
  EXPECT_EQ(old_job.Wait(), kLostTheRun) << old_job.err();
  EXPECT_EQ(old_job.told().committed, 2) << "it was told so";
  EXPECT_EQ(StateOf(2), "late");
  ExpectCatalog(1);
  // A reader that comes now takes what the seal lists.
  new_job.Continue(new_stopped);
  EXPECT_EQ(new_job.Wait(), 0) << new_job.err();
  ExpectCatalog(kNewBase + 3);
  int64_t found = -1;
  EXPECT_EQ(CheckRun(run(), new_job.told(), 2, &found), "");
}

// Between the look at owners/ and the unlink.
TEST_F(OwnersTest, AnUnlinkAfterTheTakeoverFindsNothing) {
  SaverSpec spec = Spec("old");
  spec.saves = kForEver;
  spec.fault = "rank=0,match=MANIFEST,op=remove,do=stop";
  SaverJob old_job(spec);
  const pid_t stopped = old_job.WaitForStop();
  ASSERT_NE(stopped, -1) << old_job.err();
  // Steps 1 and 2 are committed, and 1 is about to go.
  SaverSpec taker = Spec("new");
  taker.base = kNewBase;
  taker.keep_last = 9;
  SaverJob new_job(taker);
  ASSERT_EQ(new_job.Wait(), 0) << new_job.err();
  EXPECT_EQ(StateOf(1), "committed");
  old_job.Continue(stopped);
  EXPECT_EQ(old_job.Wait(), kLostTheRun) << old_job.err();
  for (const int64_t step : {int64_t{1}, int64_t{2}, kNewBase + 1}) {
    EXPECT_EQ(StateOf(step), "committed") << step;
  }
  ExpectCatalog(kNewBase + 3);
}

}  // namespace
}  // namespace holdfast::tests
