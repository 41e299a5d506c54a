// tests/sim/sim_storage_test.cc: the simulated disk loses what storage.h lets
// it lose, keeps what storage.h promises, and shows each broken promise.
//
// Each claim is tried under many seeds: what may happen must have been seen,
// and what must not happen must not.

#include "tests/support/sim_storage.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tests {
namespace {

using ckpt::AlignedBuffer;
using ckpt::Blocking;
using ckpt::FileId;
using ckpt::OpTag;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr FileId kFile{1};
constexpr int kSeeds = 200;

AlignedBuffer Filled(size_t size, int value) {
  AlignedBuffer buffer(size);
  std::memset(buffer.data(), value, size);
  return buffer;
}

std::vector<std::byte> Bytes(std::string_view text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// What file "f" reads as: "absent", "whole", or "torn" when anything differs
// from 8 KiB of 'x'.
std::string Found(SimDisk& disk) {
  SimStorage storage(disk, {.process = 99});
  const auto bytes = Blocking(storage).Get("f", 1 << 20);
  if (!bytes.ok()) return "absent";
  if (bytes->size() != 8192) return "torn";
  for (const std::byte byte : *bytes) {
    if (byte != std::byte{'x'}) return "torn";
  }
  return "whole";
}

struct Steps {
  bool sync = false;
  bool sync_dir = false;
};

// Writes "f" with the given care, cuts the power, and says what is left.
std::set<std::string> FoundAfterCut(const Steps& steps,
                                    const SimDiskOptions& base = {}) {
  std::set<std::string> found;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SimDiskOptions options = base;
    options.seed = static_cast<uint64_t>(seed);
    SimDisk disk(options);
    const AlignedBuffer data = Filled(8192, 'x');
    {
      SimStorage storage(disk, {});
      Blocking blocking(storage);
      EXPECT_TRUE(blocking.Create("f", kFile).ok());
      EXPECT_TRUE(blocking.Write(kFile, 0, data.span()).ok());
      if (steps.sync) {
        EXPECT_TRUE(blocking.Sync(kFile).ok());
      }
      if (steps.sync_dir) {
        EXPECT_TRUE(blocking.SyncDir(".").ok());
      }
    }
    disk.PowerCycle();
    found.insert(Found(disk));
  }
  return found;
}

TEST(SimStorageTest, WithoutAnySyncAFileMayBeAbsentTornOrWhole) {
  EXPECT_THAT(FoundAfterCut({}), ElementsAre("absent", "torn", "whole"));
}

TEST(SimStorageTest, SyncedDataUnderAnUnsyncedNameIsWholeOrAbsent) {
  EXPECT_THAT(FoundAfterCut({.sync = true}), ElementsAre("absent", "whole"));
}

TEST(SimStorageTest, ASyncedNameMayShowUnsyncedData) {
  EXPECT_THAT(FoundAfterCut({.sync_dir = true}), ElementsAre("torn", "whole"));
}

TEST(SimStorageTest, SyncedDataUnderASyncedNameIsAlwaysWhole) {
  EXPECT_THAT(FoundAfterCut({.sync = true, .sync_dir = true}),
              ElementsAre("whole"));
}

TEST(SimStorageTest, OnAnObjectStoreSyncKeepsTheNameToo) {
  EXPECT_THAT(FoundAfterCut({.sync = true}, {.object_store = true}),
              ElementsAre("whole"));
}

TEST(SimStorageTest, TheCanaryOfIgnoredFileSyncShows) {
  EXPECT_THAT(FoundAfterCut({.sync = true, .sync_dir = true},
                            {.ignore_file_sync = true}),
              Contains("torn"));
}

TEST(SimStorageTest, TheCanaryOfIgnoredDirectorySyncShows) {
  EXPECT_THAT(FoundAfterCut({.sync = true, .sync_dir = true},
                            {.ignore_dir_sync = true}),
              Contains("absent"));
}

// Puts "f" and cuts after each of its operations; what is found when the call
// had answered OK, and what when it had not.
struct PutOutcomes {
  std::set<std::string> after_ok;
  std::set<std::string> otherwise;
};
PutOutcomes FoundAfterPut(const SimDiskOptions& base = {}) {
  PutOutcomes outcomes;
  const int64_t ops = base.object_store ? 1 : 6;
  const AlignedBuffer data = Filled(8192, 'x');
  for (int seed = 1; seed <= kSeeds; ++seed) {
    for (int64_t cut = 0; cut <= ops; ++cut) {
      SimDiskOptions options = base;
      options.seed = static_cast<uint64_t>(seed);
      SimDisk disk(options);
      disk.CutPowerAfter(cut);
      bool ok = false;
      {
        SimStorage storage(disk, {});
        ok = Blocking(storage, 1000).PutIfAbsent("f", data.span()).ok();
      }
      EXPECT_EQ(ok, cut == ops) << disk.Log();
      disk.PowerCycle();
      (ok ? outcomes.after_ok : outcomes.otherwise).insert(Found(disk));
    }
  }
  return outcomes;
}

TEST(SimStorageTest, PutIfAbsentIsNothingOrWholeAtEveryCut) {
  const PutOutcomes outcomes = FoundAfterPut();
  EXPECT_THAT(outcomes.after_ok, ElementsAre("whole"));
  EXPECT_THAT(outcomes.otherwise, ElementsAre("absent", "whole"));
}

TEST(SimStorageTest, PutIfAbsentOnAnObjectStoreIsNothingOrWhole) {
  const PutOutcomes outcomes = FoundAfterPut({.object_store = true});
  EXPECT_THAT(outcomes.after_ok, ElementsAre("whole"));
  EXPECT_THAT(outcomes.otherwise, ElementsAre("absent"));
}

TEST(SimStorageTest, CanariesShowThroughPutIfAbsentToo) {
  EXPECT_THAT(FoundAfterPut({.ignore_file_sync = true}).otherwise,
              Contains("torn"));
  EXPECT_THAT(FoundAfterPut({.ignore_dir_sync = true}).after_ok,
              Contains("absent"));
}

// Renames the durable directory "a" to "b" and cuts without a sync.
std::set<std::string> FoundAfterRename(bool sync, bool journaled) {
  std::set<std::string> found;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(
        {.seed = static_cast<uint64_t>(seed), .journaled_names = journaled});
    {
      SimStorage storage(disk, {});
      Blocking blocking(storage);
      EXPECT_TRUE(blocking.MakeDir("a").ok());
      EXPECT_TRUE(blocking.SyncDir(".").ok());
      EXPECT_TRUE(blocking.Rename("a", "b").ok());
      if (sync) {
        EXPECT_TRUE(blocking.SyncDir(".").ok());
      }
    }
    disk.PowerCycle();
    std::string names;
    for (const std::string& name : disk.Names()) names += name;
    found.insert(names);
  }
  return found;
}

TEST(SimStorageTest, AnUnsyncedRenameMayKeepOneSideOrNone) {
  EXPECT_THAT(FoundAfterRename(/*sync=*/false, /*journaled=*/false),
              ElementsAre("", "a/", "b/"));
}

TEST(SimStorageTest, AJournalKeepsARenameWholeOrNotAtAll) {
  EXPECT_THAT(FoundAfterRename(/*sync=*/false, /*journaled=*/true),
              ElementsAre("a/", "b/"));
}

TEST(SimStorageTest, ASyncedRenameIsKept) {
  EXPECT_THAT(FoundAfterRename(/*sync=*/true, /*journaled=*/false),
              ElementsAre("b/"));
}

TEST(SimStorageTest, AWriteWhoseAnswerWasNotSeenIsNotCoveredBySync) {
  std::set<std::string> found;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk({.seed = static_cast<uint64_t>(seed)});
    const AlignedBuffer data = Filled(8192, 'x');
    {
      SimStorage storage(disk, {});
      Blocking blocking(storage);
      EXPECT_TRUE(blocking.Create("f", kFile).ok());
      EXPECT_TRUE(blocking.SyncDir(".").ok());
      storage.Write(kFile, 0, data.span(), OpTag{1});
      storage.Sync(kFile, OpTag{2});
      for (int answers = 0; answers < 2;) {
        ckpt::Completion answer;
        if (storage.Poll({&answer, 1}) == 0) continue;
        ++answers;
        EXPECT_TRUE(answer.status.ok()) << answer.status;
      }
    }
    disk.PowerCycle();
    found.insert(Found(disk));
  }
  EXPECT_THAT(found, ElementsAre("torn", "whole"));
}

TEST(SimStorageTest, WritesInFlightAtAKillLandInPart) {
  std::set<std::string> found;
  for (int seed = 1; seed <= 20; ++seed) {
    SimDisk disk({.seed = static_cast<uint64_t>(seed)});
    const AlignedBuffer data = Filled(8192, 'x');
    SimStorage storage(disk, {.process = 3});
    EXPECT_TRUE(Blocking(storage).Create("f", kFile).ok());
    storage.Write(kFile, 0, data.span(), OpTag{1});
    disk.Kill(3);
    EXPECT_TRUE(storage.dead());
    ckpt::Completion answer;
    EXPECT_EQ(storage.Poll({&answer, 1}), 0);
    found.insert(Found(disk));
  }
  EXPECT_THAT(found, Contains("torn"));
}

TEST(SimStorageTest, AKilledProcessLeavesWhatItHadDoneAndCanStartAgain) {
  SimDisk disk({});
  const std::vector<std::byte> bytes = Bytes("x");
  {
    SimStorage storage(disk, {.process = 1});
    disk.KillAfter(1, 6 + 3);
    Blocking blocking(storage, 1000);
    EXPECT_TRUE(blocking.PutIfAbsent("first", bytes).ok());
    EXPECT_EQ(blocking.PutIfAbsent("second", bytes).code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(storage.dead());
  }
  SimStorage again(disk, {.process = 1});
  EXPECT_FALSE(again.dead());
  const auto names = Blocking(again).List(".");
  ASSERT_TRUE(names.ok());
  // The temporary file is there, and hidden.
  EXPECT_THAT(*names, ElementsAre(ckpt::DirEntry{"first", false}));
  EXPECT_EQ(disk.Names().size(), 2);
  EXPECT_TRUE(Blocking(again).PutIfAbsent("second", bytes).ok());
}

TEST(SimStorageTest, AFailedSyncPoisonsAndMayHaveLostTheData) {
  std::set<std::string> found;
  for (int seed = 1; seed <= 50; ++seed) {
    SimDisk disk({.seed = static_cast<uint64_t>(seed)});
    const AlignedBuffer data = Filled(8192, 'x');
    {
      SimStorage storage(disk, {});
      Blocking blocking(storage);
      EXPECT_TRUE(blocking.Create("f", kFile).ok());
      EXPECT_TRUE(blocking.Write(kFile, 0, data.span()).ok());
      disk.Inject(
          {.op = SimOp::kSync, .status = absl::UnavailableError("EIO")});
      EXPECT_EQ(blocking.Sync(kFile).code(), absl::StatusCode::kUnavailable);
      // The fault was for once, but the file stays poisoned.
      EXPECT_EQ(blocking.Sync(kFile).code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(blocking.Close(kFile).code(), absl::StatusCode::kUnavailable);
    }
    found.insert(Found(disk));
  }
  EXPECT_THAT(found, Contains("torn"));
}

TEST(SimStorageTest, FaultsHitTheNthMatchOrAllFromThenOn) {
  SimDisk disk({});
  SimStorage storage(disk, {.process = 2});
  Blocking blocking(storage);
  disk.Inject({.process = 2,
               .op = SimOp::kMakeDir,
               .name_contains = "d",
               .nth = 2,
               .status = absl::ResourceExhaustedError("ENOSPC")});
  EXPECT_TRUE(blocking.MakeDir("d1").ok());
  EXPECT_EQ(blocking.MakeDir("d2").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(blocking.MakeDir("d2").ok());
  disk.Inject({.op = SimOp::kMakeDir,
               .from_then_on = true,
               .status = absl::UnavailableError("EIO")});
  EXPECT_EQ(blocking.MakeDir("d3").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(blocking.MakeDir("d3").code(), absl::StatusCode::kUnavailable);
  disk.ClearFaults();
  EXPECT_TRUE(blocking.MakeDir("d3").ok());
}

TEST(SimStorageTest, AFailedDirectorySyncLeavesPutIfAbsentUnknown) {
  SimDisk disk({});
  SimStorage storage(disk, {});
  disk.Inject({.op = SimOp::kSyncDir, .status = absl::UnavailableError("EIO")});
  EXPECT_EQ(Blocking(storage).PutIfAbsent("f", Bytes("x")).code(),
            absl::StatusCode::kUnknown);
  EXPECT_THAT(disk.Names(), ElementsAre("f"));
}

TEST(SimStorageTest, AFailedPutLeavesNoName) {
  for (const SimOp op :
       {SimOp::kCreate, SimOp::kWrite, SimOp::kSync, SimOp::kLink}) {
    SimDisk disk({});
    SimStorage storage(disk, {});
    disk.Inject({.op = op, .status = absl::UnavailableError("EIO")});
    EXPECT_EQ(Blocking(storage).PutIfAbsent("f", Bytes("x")).code(),
              absl::StatusCode::kUnavailable);
    EXPECT_THAT(disk.Names(), IsEmpty()) << Name(op);
  }
}

TEST(SimStorageTest, AFullDiskRefusesCreateWriteAndPut) {
  SimDisk disk({.capacity_bytes = 8192});
  SimStorage storage(disk, {});
  Blocking blocking(storage);
  const AlignedBuffer data = Filled(12288, 'x');
  EXPECT_EQ(blocking.Create("f", kFile, 12288).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(disk.Names(), IsEmpty());
  EXPECT_TRUE(blocking.Create("f", kFile).ok());
  EXPECT_EQ(blocking.Write(kFile, 0, data.span()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(blocking.Close(kFile).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(blocking.Remove("f").ok());
  EXPECT_TRUE(blocking.SyncDir(".").ok());
  EXPECT_EQ(blocking.PutIfAbsent("g", data.span()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(disk.Names(), IsEmpty());
}

TEST(SimStorageTest, AFlippedBitIsReadAndSurvives) {
  SimDisk disk({});
  {
    SimStorage storage(disk, {});
    ASSERT_TRUE(Blocking(storage).PutIfAbsent("f", Bytes("abc")).ok());
  }
  disk.FlipBit("f", 1, 0);
  disk.PowerCycle();
  SimStorage storage(disk, {});
  EXPECT_EQ(*Blocking(storage).Get("f", 10), Bytes("acc"));
}

TEST(SimStorageTest, AFileThatShrinksUnderAReaderIsPastTheEnd) {
  SimDisk disk({});
  SimStorage storage(disk, {});
  Blocking blocking(storage);
  ASSERT_TRUE(blocking.PutIfAbsent("f", Filled(8192, 'x').span()).ok());
  ASSERT_EQ(*blocking.Open("f", kFile), 8192);
  disk.Truncate("f", 5000);
  AlignedBuffer out(8192);
  EXPECT_EQ(blocking.Read(kFile, 0, out.span()).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(SimStorageTest, ACloneHasAFutureOfItsOwn) {
  SimDisk disk({});
  SimStorage storage(disk, {});
  ASSERT_TRUE(Blocking(storage).PutIfAbsent("f", Bytes("abc")).ok());
  const std::unique_ptr<SimDisk> clone = disk.Clone();
  clone->FlipBit("f", 0, 1);
  {
    SimStorage other(*clone, {});
    ASSERT_TRUE(Blocking(other).Remove("f").ok());
    ASSERT_TRUE(Blocking(other).SyncDir(".").ok());
  }
  EXPECT_THAT(clone->Names(), IsEmpty());
  EXPECT_EQ(*Blocking(storage).Get("f", 10), Bytes("abc"));
}

TEST(SimStorageTest, EqualSeedsGiveEqualDisks) {
  const auto run = [](uint64_t seed) {
    SimDisk disk({.seed = seed});
    std::string log;
    {
      SimStorage a(disk, {.process = 1});
      SimStorage b(disk, {.process = 2});
      for (int i = 0; i < 20; ++i) {
        (i % 2 == 0 ? a : b)
            .PutIfAbsent("f" + std::to_string(i), Bytes("x"),
                         OpTag{static_cast<uint64_t>(i)});
      }
      std::vector<ckpt::Completion> answers(8);
      for (int i = 0; i < 30; ++i) {
        a.Poll(answers);
        b.Poll(answers);
      }
      log = disk.Log(400);
    }
    disk.PowerCycle();
    for (const std::string& name : disk.Names()) log += name + "\n";
    return log;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

class FakeClock final : public ckpt::Clock {
 public:
  absl::Duration Monotonic() const override { return now; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now; }
  void Sleep(absl::Duration duration) override { now += duration; }
  absl::Duration now = absl::Seconds(1);
};

TEST(SimStorageTest, ASlowDiskAnswersWhenItsTimeHasCome) {
  SimDisk disk({});
  FakeClock clock;
  SimStorage storage(disk, {.clock = &clock});
  storage.SetDelay(SimOp::kMakeDir, absl::Seconds(5));
  storage.MakeDir("d", OpTag{1});
  ckpt::Completion answer;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(storage.Poll({&answer, 1}), 0);
  EXPECT_THAT(disk.Names(), IsEmpty());
  clock.Sleep(absl::Seconds(5));
  size_t answers = 0;
  for (int i = 0; i < 100; ++i) answers += storage.Poll({&answer, 1});
  EXPECT_EQ(answers, 1);
  EXPECT_THAT(disk.Names(), ElementsAre("d/"));
}

}  // namespace
}  // namespace holdfast::tests
