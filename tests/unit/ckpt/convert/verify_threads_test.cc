// Verification on threads: what one finds, several find; a stop, a storage that
// does not open.

#include "ckpt/convert/verify_threads.h"

#include <fstream>
#include <string>

#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/open_storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/saved_run.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

class VerifyThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto storage = OpenStorage({.location = dir_.path()});
    ASSERT_TRUE(storage.ok()) << storage.status();
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    spec.id = {300, 2, 1};
    spec.seed = 7;
    ASSERT_TRUE(tests::WriteCheckpoint(**storage, *tests::SmallLayout(2, 1, 2),
                                       spec, "saved")
                    .ok());
    auto source =
        CheckpointSource::Open(dir_.path() + "/saved", {}, RealClock());
    ASSERT_TRUE(source.ok()) << source.status();
    manifest_ = (*source)->manifest();
    options_.open = [this] { return OpenStorage({.location = dir_.path()}); };
    options_.dir = "saved";
    options_.hash = true;
    options_.threads = 3;
  }
  VerifyOutcome Verify() const {
    return VerifyOnThreads(manifest_, options_, RealClock());
  }

  tests::TempDir dir_{tests::MemoryFolder()};
  Manifest manifest_;
  VerifyThreadsOptions options_;
};

TEST_F(VerifyThreadsTest, AllOfItIsReadOnceAndHashed) {
  uint64_t bytes = 0;
  for (const ShardFile& file : manifest_.files) bytes += file.bytes;
  for (const int threads : {1, 3, 8}) {
    options_.threads = threads;
    const VerifyOutcome outcome = Verify();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.item_digests, manifest_.item_digests);
    EXPECT_EQ(outcome.bytes_read, bytes);
  }
}

TEST_F(VerifyThreadsTest, DamageIsFoundByWhoeverReadsIt) {
  const std::string path =
      dir_.path() + "/saved/" + manifest_.files.back().name;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5000);
  file.put('\x5a');
  file.close();
  const VerifyOutcome outcome = Verify();
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(outcome.damage.size(), 1u);
  EXPECT_EQ(outcome.damage[0].file_name, manifest_.files.back().name);
}

TEST_F(VerifyThreadsTest, AStopAndAStorageThatDoesNotOpenAreSaid) {
  int ticks = 0;
  options_.on_tick = [&ticks](uint64_t) { return ++ticks > 1; };
  EXPECT_EQ(Verify().status.code(), absl::StatusCode::kCancelled);
  options_.on_tick = nullptr;
  options_.open = [] { return absl::UnavailableError("away"); };
  EXPECT_EQ(Verify().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(VerifyThreadsUseful(manifest_), 1);
  manifest_.files[0].bytes = UINT64_MAX / 2;
  EXPECT_EQ(VerifyThreadsUseful(manifest_), 1024);
}

}  // namespace
}  // namespace holdfast::ckpt
