// tests/unit/ckpt/storage/fault_storage_test.cc: each act on a real directory.

#include "ckpt/storage/fault_storage.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/posix_storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using ::testing::KilledBySignal;

constexpr FileId kFile{1};

class FaultStorageTest : public ::testing::Test {
 protected:
  std::unique_ptr<FaultStorage> Start(std::string_view spec, int rank = 0,
                                      const Clock& clock = RealClock()) {
    return std::make_unique<FaultStorage>(
        *OpenPosixStorage({.root = dir_.path()}), *ParseStorageFaults(spec),
        rank, clock);
  }

  tests::TempDir dir_;
  AlignedBuffer data_{4096};
};

// Three writes and a sync to "f", then "m" put.
absl::Status Save(Storage& storage, const AlignedBuffer& data) {
  Blocking io(storage);
  absl::Status status = io.Create("f", kFile);
  for (uint64_t i = 0; status.ok() && i < 3; ++i) {
    status = io.Write(kFile, i * 4096, data.span());
  }
  if (status.ok()) status = io.Sync(kFile);
  if (status.ok()) status = io.Close(kFile);
  if (status.ok()) status = io.PutIfAbsent("m", {});
  return status;
}

TEST_F(FaultStorageTest, CountsWhatItMatches) {
  const auto storage =
      Start("do=count;op=write,do=count;match=m,do=count;op=get,do=count");
  ASSERT_TRUE(Save(*storage, data_).ok());
  EXPECT_EQ(storage->count(0), 6);
  EXPECT_EQ(storage->count(1), 3);
  EXPECT_EQ(storage->count(2), 1);
  EXPECT_EQ(storage->count(3), 0);
}

TEST_F(FaultStorageTest, FaultsOfOtherRanksAreLeftOut) {
  EXPECT_TRUE(Save(*Start("rank=1,do=kill", /*rank=*/2), data_).ok());
}

TEST_F(FaultStorageTest, FailsOnceAndThePoisonStays) {
  const auto storage = Start("op=write,n=2,do=fail,error=ENOSPC");
  const absl::Status status = Save(*storage, data_);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("write f (injected): No space left on device"));
  Blocking io(*storage);
  EXPECT_EQ(io.Write(kFile, 0, data_.span()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(io.Sync(kFile).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(io.Close(kFile).code(), absl::StatusCode::kResourceExhausted);
  // Another file works, under the same id.
  EXPECT_TRUE(io.Create("g", kFile).ok());
  EXPECT_TRUE(io.Write(kFile, 0, data_.span()).ok());
  EXPECT_TRUE(io.Close(kFile).ok());
}

TEST_F(FaultStorageTest, FailsFromThenOn) {
  const auto storage = Start("op=put,n=2,do=fail,lasting=yes");
  Blocking io(*storage);
  EXPECT_TRUE(io.PutIfAbsent("a", {}).ok());
  EXPECT_EQ(io.PutIfAbsent("b", {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(io.PutIfAbsent("c", {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(io.List(".")->size(), 1);
}

TEST_F(FaultStorageTest, APlaceInAFileFailsAndTheOthersDoNot) {
  ASSERT_TRUE(Save(*Start(""), data_).ok());
  const auto storage = Start("op=read,at=4096,do=fail,lasting=yes");
  Blocking io(*storage);
  ASSERT_TRUE(io.Open("f", kFile).ok());
  AlignedBuffer all(3 * 4096);
  EXPECT_TRUE(io.Read(kFile, 0, data_.span()).ok());
  EXPECT_TRUE(absl::IsUnavailable(io.Read(kFile, 4096, data_.span()).status()));
  EXPECT_TRUE(io.Read(kFile, 8192, data_.span()).ok());
  EXPECT_TRUE(absl::IsUnavailable(io.Read(kFile, 0, all.span()).status()));
}

TEST_F(FaultStorageTest, AFailedReadPoisonsNothing) {
  const auto storage = Start("op=read,do=fail");
  Blocking io(*storage);
  ASSERT_TRUE(io.PutIfAbsent("f", data_.span()).ok());
  ASSERT_TRUE(io.Open("f", kFile).ok());
  EXPECT_EQ(io.Read(kFile, 0, data_.span()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(io.Read(kFile, 0, data_.span()).ok());
}

class FakeClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return now; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now; }
  void Sleep(absl::Duration duration) override { now += duration; }
  absl::Duration now = absl::Seconds(1);
};

TEST_F(FaultStorageTest, DelayedCallsBeginLate) {
  FakeClock clock;
  const auto storage = Start("op=put,n=2,do=delay,ms=500", 0, clock);
  Blocking io(*storage);
  ASSERT_TRUE(io.PutIfAbsent("a", {}).ok());
  storage->PutIfAbsent("b", {}, OpTag{1});
  Completion answer;
  EXPECT_EQ(storage->Poll({&answer, 1}), 0);
  clock.Sleep(absl::Milliseconds(499));
  EXPECT_EQ(storage->Poll({&answer, 1}), 0);
  clock.Sleep(absl::Milliseconds(1));
  EXPECT_EQ(storage->Poll({&answer, 1}), 1);
  EXPECT_TRUE(answer.status.ok());
}

using FaultStorageDeathTest = FaultStorageTest;

TEST_F(FaultStorageDeathTest, KillsBeforeTheOperation) {
  EXPECT_EXIT(Save(*Start("op=write,n=3,do=kill"), data_).IgnoreError(),
              KilledBySignal(SIGKILL),
              "killing this process before write "
              "number 3, f");
  const auto storage = Start("");
  Blocking io(*storage);
  ASSERT_TRUE(io.Open("f", kFile).ok());
  EXPECT_EQ(io.Get("f", 1 << 20)->size(), 2 * 4096);
}

TEST_F(FaultStorageDeathTest, KillsAfterTheAnswer) {
  EXPECT_EXIT(Save(*Start("op=put,do=kill,when=after"), data_).IgnoreError(),
              KilledBySignal(SIGKILL),
              "killing this process after put "
              "number 1, m");
  const auto storage = Start("");
  EXPECT_TRUE(Blocking(*storage).Get("m", 1).ok());
}

TEST_F(FaultStorageTest, StopsBetweenTwoOperationsAndGoesOnWhenContinued) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(Save(*Start("op=put,do=stop"), data_).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto storage = Start("");
  Blocking io(*storage);
  EXPECT_EQ(io.Get("f", 1 << 20)->size(), 3 * 4096);
  EXPECT_TRUE(absl::IsNotFound(io.Get("m", 1).status()));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(io.Get("m", 1).ok());
}

}  // namespace
}  // namespace holdfast::ckpt
